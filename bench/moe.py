"""Speed of experts: `danalab bench moe`, with the result in bench/results.

python bench/moe.py [--rounds 7]
"""

from __future__ import annotations

import sys
from pathlib import Path

from danalab.cli.app import main

if __name__ == "__main__":
    result = Path(__file__).parent / "results" / "moe_cpu.json"
    sys.exit(main(["bench", "moe", "--output", str(result), *sys.argv[1:]]))
