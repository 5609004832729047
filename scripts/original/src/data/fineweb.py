"""`python src/data/fineweb.py` is `danalab data prepare fineweb-10bt`; see ../../forward.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from forward import forward

if __name__ == "__main__":
    forward("data", "prepare", "fineweb-10bt", *sys.argv[1:])
