"""`python -m stand_in_run SCRIPT ...`: stands for a run, which the pool starts as a module."""

import sys

if __name__ == "__main__":
    exec(sys.argv.pop(1))
