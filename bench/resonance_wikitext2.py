r"""Loss of resonance, resonance without its mixer, and attention on WikiText-2: an hour; resumable.

danalab data prepare text --tokenizer bpe-4096 --out DATA --input wikitext-2/train.txt --val-input wikitext-2/valid.txt
python bench/resonance_wikitext2.py --data DATA --runs FOLDER [--steps 400] [--variants]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from danalab.benchmarks.claims.resonance_wikitext2 import Settings, measure
from danalab.files import write_json

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder that `danalab data prepare` made")
    parser.add_argument("--runs", type=Path, help="folder of the sweep")
    parser.add_argument("--lrs", type=float, nargs="+", default=Settings.lrs)
    parser.add_argument("--seeds", type=int, nargs="+", default=Settings.seeds, help="the first is that of the trials")
    parser.add_argument("--steps", type=int, default=Settings.steps, help="steps of 8 x 512 tokens")
    parser.add_argument("--jobs", type=int, default=Settings.jobs, help="runs at a time")
    parser.add_argument("--variants", action="store_true", help="train the options of resonance, too")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "resonance_wikitext2.json")
    chosen = vars(parser.parse_args())
    output = chosen.pop("output")
    if chosen["data"] is None or chosen["runs"] is None:
        print("resonance_wikitext2 needs --data and --runs, and an hour: nothing was measured")
    else:
        settings = Settings(**{**chosen, "lrs": tuple(chosen["lrs"]), "seeds": tuple(chosen["seeds"])})
        write_json(output, measure(settings, print))
        print(f"written to {output}")
