"""`python -m danalab` is the `danalab` command."""

import sys

from danalab.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
