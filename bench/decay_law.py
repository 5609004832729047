"""How strong should weight decay be, and how does that depend on the length of the run?

python bench/decay_law.py PHASE ...     runs and appends to bench/results/decay_law_cpu.jsonl; may be killed
python bench/decay_law.py --docs        writes the tables of that file into docs/
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from danalab.benchmarks.decay.phases import measure, phases
from danalab.benchmarks.decay.tables import fill
from danalab.benchmarks.decay.trials import Results

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "docs" / name for name in ("bring-your-own-trainer.md", "decay-law.md", "findings.md")]

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phases", nargs="*", metavar="PHASE", help=", ".join(phases()))
    parser.add_argument("--docs", action="store_true", help="write the tables into the pages of docs/")
    parser.add_argument("--output", type=Path, default=ROOT / "bench" / "results" / "decay_law_cpu.jsonl")
    flags = parser.parse_args()
    torch.set_num_threads(1)
    if unknown := set(flags.phases) - phases().keys():
        parser.error(f"unknown phase {', '.join(unknown)}; known: {', '.join(phases())}")
    if flags.phases:
        measure(flags.phases, Results(flags.output), lambda line: print(line, flush=True))
    if flags.docs:
        for page in PAGES:
            page.write_text(fill(page.read_text(encoding="utf-8"), Results(flags.output)), encoding="utf-8")
