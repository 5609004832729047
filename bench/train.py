"""Speed of the trainer: `danalab bench train`, with the result in bench/results.

python bench/train.py [--rounds 15] [--device cuda] [--heads 12]
"""

from __future__ import annotations

import sys
from pathlib import Path

from danalab.cli.app import main

if __name__ == "__main__":
    arguments = sys.argv[1:]
    device = "cuda" if "cuda" in arguments or "--device=cuda" in arguments else "cpu"
    result = Path(__file__).parent / "results" / f"train_{device}.json"
    sys.exit(main(["bench", "train", "--output", str(result), *arguments]))
