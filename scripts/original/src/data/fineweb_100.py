"""`python src/data/fineweb_100.py --fineweb-dir D` is `danalab data prepare fineweb-100bt --input D`."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from forward import forward, renamed

# All cores are used here, and a share of the documents validates.
NAMES = {"--fineweb-dir": "--input", "--num-proc": "", "--validation-examples": ""}

if __name__ == "__main__":
    words = renamed(sys.argv[1:], NAMES)
    if "--datasets-dir" in words:  # an environment variable here
        place = words.index("--datasets-dir")
        os.environ["DATASETS_DIR"] = words[place + 1]
        del words[place : place + 2]
    forward("data", "prepare", "fineweb-100bt", *words)
