"""Parallel modes side by side: `danalab bench parallel`, with the result in bench/results.

python bench/parallel.py [--heads 6] [--nproc 2] [--device cuda]
"""

from __future__ import annotations

import sys
from pathlib import Path

from danalab.cli.app import main

if __name__ == "__main__":
    arguments = sys.argv[1:]
    device = "cuda" if "cuda" in arguments or "--device=cuda" in arguments else "cpu"
    result = Path(__file__).parent / "results" / f"parallel_{device}.json"
    sys.exit(main(["bench", "parallel", "--output", str(result), *arguments]))
