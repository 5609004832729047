"""One real ablation: which of five options of DanaMuon earn their place, one of them a path of ages of a plugin.

mkdir ablation && danalab judge --plugin bench/ablation.py --track char --trials 3 --bound 0.1 --difference 0.02 \\
  --budget 40runs --jobs 1 --ledger ablation --json --ablate \\
  "dana-muon:age=square_root(0.1),normalise=rows,cautious_decay=true,kappa=0.75,ns_method=polar-express" \\
  > ablation/answer.json
python bench/ablation.py ablation/answer.json     # into bench/results/benchmarks.jsonl, and the table of docs/judge.md

The plugin is this file: with `square_root` the mean age grows like the root of the step, as the best constant age of
Muon does with the length of a run (docs/memory.md).
"""

import argparse
import json
from pathlib import Path
from typing import Any

from danalab.files import read_json
from danalab.optim.rules.age import AGES
from danalab.report.formats import as_markdown
from danalab_bench.pages import RESULTS, benchmark, fill_parts, store_benchmarks

PAGE = Path(__file__).parents[1] / "docs" / "judge.md"
STORED = ("part", "answer", "contender", "baseline", "track", "effect", "low", "high", "alpha", "bound", "difference",
          "noise", "pairs", "rates", "runs", "unit", "sentence")  # fmt: skip

if "square-root" not in AGES:  # this module may be imported under two names
    AGES.add("square-root", lambda t, s, share: share * t**0.5)


def table() -> str:
    """The table of the page: what each part does, and how much the loss rises without it."""
    rows: list[dict[str, Any]] = benchmark("ablation")
    lines = [
        [f"`{row['part']}`", row["answer"], f"{row['effect']:+.3f} ({row['low']:+.3f} to {row['high']:+.3f})"]
        for row in rows
    ]
    return as_markdown((["part", "answer", "loss without it"], lines))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("answer", type=Path, nargs="?", help="of danalab judge --json")
    if answer := parser.parse_args().answer:
        rows = [{name: row.get(name) for name in STORED} for row in read_json(answer)["verdicts"]]
        file = RESULTS / "ablation.json"
        file.write_text(json.dumps(rows), encoding="utf-8")
        store_benchmarks([file])
    PAGE.write_text(fill_parts(PAGE.read_text(encoding="utf-8"), "ablation", {"table": table()}), encoding="utf-8")
