"""The memory of momentum at its second place, the nanogpt track: what the theory says before runs, and its rows.

python bench/memory_nanogpt.py --predict                            # once, before the runs
danalab ladder bench/memory_nanogpt.yaml --jobs 1                   # the runs
python bench/memory_nanogpt.py --ladder ladders/memory_nanogpt      # into bench/results/memory_cpu.jsonl

A step of the first place (bench/memory_runs.py) has 128 tokens and was held to the theory's batch 1. A step of the
track has 2,048, which is 16 times as many: its predictions are those of batch 16. Its 600 steps lie between 300 and
1,200 on a logarithmic scale, and so do its numbers: they are the geometric means of the stored ones.
"""

import argparse
import hashlib
import json
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from danalab_bench.pages import RESULTS, benchmark, store_benchmarks
from memory_runs import PREDICTIONS

NAME, PLAN, STEPS, BATCH = "memory_nanogpt_predictions", Path(__file__).parent / "memory_nanogpt.yaml", 600, 16
STATEMENTS = {
    "age": "Muon's best constant age is 1.8 steps: of 1, 2 and 4 the best is 2, and all are ahead of the track's own, 19.",
    "order": "Muon: follow ends ahead of the best constant age, by 4% of the excess risk; log time ends behind it, by "
    "28%; the falling age, here of eight averages, ends behind it.",
    "adana": "No map has ADana's damped term. If it is like root, 2 is the best of 2, 4 and 8, log time ends behind it "
    "by 9% of the excess risk, and follow is level with it.",
    "dana-muon": "DanaMuon's map is that of Muon: follow ends ahead of log time.",
}
"""What the runs are to show or to contradict, in words."""


def predict() -> dict[str, Any]:
    """The stored predictions of batch 16, between 300 and 1,200 steps."""
    stored = json.loads(PREDICTIONS.read_text(encoding="utf-8"))["rows"]
    rows = []
    for kind in ("sign", "root"):
        first, second = (
            next(row for row in stored if (row["map"], row["batch"], row["steps"]) == (kind, BATCH, steps))
            for steps in (300, 1200)
        )
        if first["which"] != second["which"]:
            raise ValueError(f"{kind}: {first['which']} at 300 steps and {second['which']} at 1,200")
        means = {
            name: round((first[name] * second[name]) ** 0.5, 3)
            for name in ("best constant age", "best constant", "log time", "follows the rate")
        }
        rows.append({"map": kind, "batch": BATCH, "steps": STEPS, **means, "which": first["which"]})
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    return {
        "made": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": commit,
        "from": hashlib.sha256(PREDICTIONS.read_bytes()).hexdigest(),
        "plan": hashlib.sha256(PLAN.read_bytes()).hexdigest(),
        "statements": STATEMENTS,
        "rows": rows,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--predict", action="store_true")
    if parser.parse_args().predict:
        if benchmark(NAME) is not None:
            raise SystemExit(f"{NAME} is in {RESULTS}: predictions are made once")
        file = RESULTS / f"{NAME}.json"
        file.write_text(json.dumps(predict()), encoding="utf-8")
        store_benchmarks([file])
