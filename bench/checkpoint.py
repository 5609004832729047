"""Cost of a checkpoint: `danalab bench checkpoint`, with the result in bench/results.

python bench/checkpoint.py [--rounds 5] [--sizes 10 100]
"""

from __future__ import annotations

import sys
from pathlib import Path

from danalab.cli.app import main

if __name__ == "__main__":
    result = Path(__file__).parent / "results" / "checkpoint.json"
    sys.exit(main(["bench", "checkpoint", "--output", str(result), *sys.argv[1:]]))
