"""Decoding speed against transformers.generate: batches of 1, 8 and 32, and a trace of arriving requests.

python bench/generate.py [--batches 1 8 32] [--tokens 128] [--requests 64] [--rounds 7] [--threads 2]
"""

import argparse
from pathlib import Path

from danalab.benchmarks.timing import pin_threads
from danalab.files import write_json

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32], help="equal prompts at a time")
    parser.add_argument("--tokens", type=int, default=128, help="to decode for each prompt")
    parser.add_argument("--requests", type=int, default=64, help="of the trace; 0: no trace")
    parser.add_argument("--rounds", type=int, default=7, help="counted rounds; one more warms up")
    parser.add_argument("--threads", type=int, default=2, help="of the CPU")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "generate_cpu.json")
    chosen = parser.parse_args()
    pin_threads(chosen.threads)
    from danalab.benchmarks.generate import measure

    write_json(chosen.out, measure(chosen.batches, chosen.tokens, chosen.requests, chosen.rounds, print))
    print(chosen.out)
