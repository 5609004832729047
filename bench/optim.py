"""Time of an optimizer step: `danalab bench optim`, with the result in bench/results.

python bench/optim.py [--sizes 0.2 500x2k 20 88] [--rounds 21] [--device cuda] [--opts adana:fused po.Lion]
"""

from __future__ import annotations

import sys
from pathlib import Path

from danalab.cli.app import main

if __name__ == "__main__":
    arguments = sys.argv[1:]
    device = "cuda" if "cuda" in arguments or "--device=cuda" in arguments else "cpu"
    result = Path(__file__).parent / "results" / f"optim_{device}.json"
    sys.exit(main(["bench", "optim", "--output", str(result), *arguments]))
