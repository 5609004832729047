"""`./src/main.py FLAGS` of the original is `danalab train FLAGS`, which knows its spellings; see ../forward.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from forward import forward, renamed

if __name__ == "__main__":
    forward("train", *renamed(sys.argv[1:], {"--config-format": ""}))
