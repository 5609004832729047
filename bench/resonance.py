"""Oscillators against attention by length of context: `danalab bench resonance`, with the result in bench/results.

python bench/resonance.py [--data FOLDER --seeds 0 1] [--device cuda]
"""

from __future__ import annotations

import sys
from pathlib import Path

from danalab.cli.app import main

if __name__ == "__main__":
    arguments = sys.argv[1:]
    device = "cuda" if "cuda" in arguments or "--device=cuda" in arguments else "cpu"
    result = Path(__file__).parent / "results" / f"resonance_{device}.json"
    sys.exit(main(["bench", "resonance", "--output", str(result), *arguments]))
