"""Speed of the chunked delta rule against the fallback of transformers and against attention.

python bench/delta_rule.py [--lengths 1024 2048 4096 8192] [--heads 8] [--width 64] [--rounds 5] [--device cuda]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from danalab.benchmarks.timing import pin_threads
from danalab.files import write_json

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048, 4096, 8192], help="[tokens]")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--width", type=int, default=64, help="features of a head")
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds; 3 more warm up")
    parser.add_argument("--threads", type=int, default=1, help="of the CPU")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--out", type=Path, help="JSON file; default bench/results/delta_rule_DEVICE.json")
    chosen = parser.parse_args()
    pin_threads(chosen.threads)
    from danalab.benchmarks.delta_rule import measure

    result = measure(chosen.lengths, chosen.heads, chosen.width, chosen.rounds, chosen.device, print)
    out = chosen.out or Path(__file__).parent / "results" / f"delta_rule_{chosen.device}.json"
    write_json(out, result)
    print(out)
