"""Assembling batches against memcpy, and preparing a corpus against the tokenizer library alone: a minute on two cores.

python bench/data.py [--output FILE]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from danalab.benchmarks.data.rates import measure
from danalab.files import write_json

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "data_cpu.json")
    chosen = parser.parse_args()
    write_json(chosen.output, measure(print))
    print(f"written to {chosen.output}")
