"""Optimizers at several sizes, learning rates tuned alike, several seeds; resumable."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional


@dataclass(frozen=True, kw_only=True)
class Flags:
    file: Positional[Path]
    """YAML with opts, sizes or heads, multipliers, seeds, extensions and fixed."""
    out: Path | None = None
    """Folder of the ladder; default ladders/NAME of the file."""
    executor: Literal["pool", "inline"] = "pool"
    """pool: processes side by side; inline: one run after the other in this process."""
    jobs: int | None = None
    """Runs at a time; default one a core."""
    json: bool = False
    """Print one JSON object on standard output."""


def run(flags: Flags) -> int:
    """Run a ladder: learning-rate trials at every size, then more seeds at the best; goes on where it was stopped."""
    import json
    import sys

    from danalab.ladder.ladder import LadderPlan, run_ladder
    from danalab.report.console import print_table
    from danalab.train.console import log_to_stderr

    log_to_stderr()
    folder = flags.out or Path("ladders") / flags.file.stem
    found = run_ladder(folder, LadderPlan.read(flags.file), executor=flags.executor, jobs=flags.jobs)
    if flags.json:
        print(json.dumps({"folder": str(folder), "rows": found.rows, "tuned": [each.__dict__ for each in found.tuned]}))
        return 1 if found.failures else 0
    losses = {row["name"]: row["final_loss"] for row in found.rows}
    print_table(
        ["optimizer", "size", "best multiplier", "trials", "loss"],
        [
            [
                each.opt,
                " ".join(f"{key}={value}" for key, value in each.size.items()),
                f"{each.multiplier:g}" + (" (edge)" if each.at_edge else ""),
                str(each.trials),
                f"{each.losses[f'{each.multiplier:g}']:.4f}",
            ]
            for each in found.tuned
        ],
        left=2,
    )
    print(f"{len(losses)} runs in {folder}", file=sys.stderr)
    return 1 if found.failures else 0
