"""Time of orthogonalisation: batched against matrix by matrix, and a whole step against torch.optim.Muon.

python bench/muon.py [--threads 2] [--rounds 5] [--layers 9] [--output FILE]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from danalab.benchmarks.orthogonalisation import measure
from danalab.files import write_json

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds, at least 5 for a result")
    parser.add_argument("--layers", type=int, default=9, help="blocks of the model (9 in the real one)")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "muon_cpu.json")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    write_json(chosen.output, measure(chosen.layers, chosen.rounds, print))
    print(f"written to {chosen.output}")
