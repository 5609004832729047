"""Predictions of the theory against measurements, and the speed of the integrator: two minutes on one core.

python bench/theory.py [--output FILE]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from danalab.benchmarks.claims.theory import measure
from danalab.files import write_json

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "theory_cpu.json")
    chosen = parser.parse_args()
    found = measure(print)
    write_json(chosen.output, found)
    sys.exit(sum(not row["holds"] for row in found["rows"]))
