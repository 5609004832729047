"""The memory of momentum: what the theory says before runs, in a file with its date and commit.

python bench/memory.py --predict      # theory only: ten minutes of one core; refuses to change a file that is there
python bench/memory.py                # the stored predictions as a table

Ladders with the setting `age` (danalab optim list --opt muon) test them.
"""

import argparse
import json
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from danalab.report.formats import as_markdown

PREDICTIONS = Path(__file__).parent / "results" / "memory_predictions.json"
TOLD = {
    "exponent": "Under sign the best constant age grows like steps^p with p the mean of its exponents, 0.43; the map "
    "root (Adam, ADana without its damped Nesterov term) and the linear map at batch 1 want ages of 1 to 2 always.",
    "order": "Under sign log time ends behind the best constant age at 1,200 and 4,800 steps, and an age that rises as "
    "the learning rate falls, like s^-0.5, ends ahead of the best constant age; one that falls like s ends behind it.",
    "falling": "Under the linear map with batch 16 an age that falls like s ends ahead of the best constant age, by "
    "under 1% of the excess risk.",
}
"""What the runs are to show or to contradict, in words."""


def predict() -> dict[str, Any]:
    """The study of `danalab theory memory` at three lengths, and its words."""
    from danalab.theory.studies.memory import compute

    study = compute(horizons=(300, 1200, 4800))
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    return {
        "made": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": commit,
        "parameters": study.parameters,
        "statements": TOLD,
        "rows": next(iter(study.findings.values())),
    }


def table(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """A line for each map, batch and length: excess risks relative to the best path."""
    head = ["map", "batch", "steps", "best constant age", "with it", "log time", "follows the rate", "which"]
    return head, [
        [row["map"], f"{row['batch']:g}", f"{row['steps']:,}", f"{row['best constant age']:.1f}"]
        + [f"{row[name]:.3f}" for name in ("best constant", "log time", "follows the rate")]
        + [row["which"]]
        for row in rows
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--predict", action="store_true")
    if parser.parse_args().predict:
        if PREDICTIONS.exists():
            raise SystemExit(f"{PREDICTIONS} is there: predictions are made once")
        PREDICTIONS.write_text(json.dumps(predict(), indent=1) + "\n", encoding="utf-8")
    print(as_markdown(table(json.loads(PREDICTIONS.read_text(encoding="utf-8"))["rows"])), end="")
