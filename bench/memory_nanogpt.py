"""The memory of momentum at its second place, the nanogpt track: what the theory says before runs, and its rows.

python bench/memory_nanogpt.py --predict                            # once, before the runs
danalab ladder bench/memory_nanogpt.yaml --jobs 1                   # the runs: half an hour of one core
python bench/memory.py --ladder ladders/memory_nanogpt              # into bench/results/memory_cpu.jsonl, and the page

A step of the first place (bench/memory_runs.py) has 128 tokens and was held to the theory's batch 1. A step of the
track has 2,048, which is 16 times as many: its predictions are those of batch 16. Its 600 steps lie between 300 and
1,200 on a logarithmic scale, and so do its numbers: they are the geometric means of the stored ones.
"""

import argparse
import hashlib
import json
import re
import subprocess
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from danalab.files import read_json, write_atomically
from danalab.ladder.rows import read_ladder
from danalab_bench.pages import RESULTS, benchmark, store_benchmarks
from memory_runs import PREDICTIONS, ROWS, Rows, read_rows
from nanogpt import stored, tuned_runs

NAME, PLAN, TRACK = "memory_nanogpt_predictions", Path(__file__).parent / "memory_nanogpt.yaml", "nanogpt"
STEPS, BATCH = 600, 16
OWN = {"dana-muon": "log time", "muon": "constant 19", "adana": "log time"}
"""The memory with which an optimizer's runs on the track are stored."""
ADDED = {
    r"^trials: 3.*": "trials: 2",
    r", adana-16(: 0.71)?(?=[]}])": "",
    r"^  adana-16: .*\n": "",
}
"""What was added to the plan after its first runs: a third rate for all, and a constant age beyond the best."""
STATEMENTS = {
    "age": "Muon's best constant age is 1.8 steps: of 1, 2 and 4 the best is 2, and all are ahead of the track's own, "
    "19.",
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
        "plan": plan_digest(),
        "statements": STATEMENTS,
        "rows": rows,
    }


def take(ladder: Path) -> None:
    """Store the runs of the ladder as rows beside those of the first place."""
    told, rows = digest(), []
    for row in read_ladder(ladder):
        run = Path(row["run"])
        ended = datetime.fromtimestamp((run / "summary.json").stat().st_mtime, timezone.utc)
        opt = next(name for name in OWN if row["opt"].startswith(f"{name}-"))
        arm = row["opt"].removeprefix(f"{opt}-")
        rows.append({
            "track": TRACK, "opt": opt, "arm": f"constant {arm}" if arm.isdigit() else arm.replace("-", " "),
            "steps": STEPS, "lr": float(f"{row['lr']:.4g}"), "seed": row["seed"], "loss": round(row["final_loss"], 5),
            "seconds": round(row["seconds"], 1), "at": ended.isoformat(timespec="seconds"),
            "commit": read_json(run / "config.json")["versions"]["git_commit"], "predictions": told,
        })  # fmt: skip
    rows.sort(key=lambda row: row["at"])
    known = "".join(json.dumps(row) + "\n" for row in (*read_rows(), *rows))
    write_atomically(ROWS, known)


def plan_digest() -> str:
    """Hash of the plan as it was predicted."""
    plan = PLAN.read_text(encoding="utf-8")
    for now, then in ADDED.items():
        plan = re.sub(now, then, plan, flags=re.MULTILINE)
    return hashlib.sha256(plan.encode()).hexdigest()


def digest() -> str:
    """Hash of the stored predictions."""
    return hashlib.sha256(json.dumps(benchmark(NAME)).encode()).hexdigest()


def compared(rows: Rows) -> Rows:
    """Rows at each arm's better rate, all seeds; and the stored runs of the optimizers with their own memory."""
    counts = Counter((row["opt"], row["arm"], row["lr"]) for row in rows)
    own = [
        {"opt": each.opt, "arm": OWN[each.opt], "steps": STEPS, "seed": run["seed"], "loss": run["final_loss"]}
        for each in tuned_runs(stored("nanogpt")) if each.opt in OWN for run in each.runs
    ]  # fmt: skip
    return [*(row for row in rows if counts[row["opt"], row["arm"], row["lr"]] > 1), *own]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--predict", action="store_true")
    if parser.parse_args().predict:
        if benchmark(NAME) is not None:
            raise SystemExit(f"{NAME} is in {RESULTS}: predictions are made once")
        file = RESULTS / f"{NAME}.json"
        file.write_text(json.dumps(predict()), encoding="utf-8")
        store_benchmarks([file])
