"""All horizons of a size from one run at a constant learning rate: their models are made by merging its checkpoints.

    row of horizon f = the run's row with the loss of the merged checkpoints in the last fifth of the steps of f

Source: Tian et al., arXiv 2507.17634; `danalab.train.run.merge` has the equation.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from danalab.errors import UserError
from danalab.ladder.fit.tuning import is_usable
from danalab.ladder.rows import FILE, save_rows, validation_points, written_rows
from danalab.scaling.learning_rate import CHINCHILLA
from danalab.train.config.execution import CheckpointSettings

SHARE, PARTS = 0.2, 10
"""Of the steps of a horizon, in which the decay is imitated; intervals between the checkpoints of this share."""


def merged_steps(last: int) -> list[int]:
    """The checkpoints that are merged for a horizon of `last` steps."""
    steps = sorted({round(last * (1 - SHARE * part / PARTS)) for part in range(PARTS + 1)} - {0})
    if len(steps) < 2:
        raise UserError(f"merge: a horizon of {last} steps has no two checkpoints in its last fifth")
    return steps


def kept_steps(horizons: Mapping[float, int]) -> str:
    """--keep-steps of a run for horizons f -> steps; the last checkpoint of each is named by its f."""
    kept = dict.fromkeys(step for last in horizons.values() for step in merged_steps(last))
    ends = {last: f"=f{f:g}" for f, last in horizons.items()}
    return ",".join(f"{step}{ends.get(step, '')}" for step in sorted(kept))


class MergedRows:
    """The ladder `folder`/merged: a row for each horizon of each run of `folder` that has ended; made once."""

    def __init__(self, folder: Path, decay: str):
        self._source, self._folder, self._decay = folder, folder / "merged", decay
        self.rows = {str(row["name"]): row for row in written_rows(self._folder / FILE)}

    def update(self, rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
        """Add the rows of runs; returns by run the loss at its longest horizon."""
        losses = {}
        for row in filter(is_usable, rows):
            named = CheckpointSettings(keep_steps=tuple(row["settings"]["keep_steps"])).kept_steps().items()
            for last, f in sorted((step, float(name[1:])) for step, name in named if name is not None):
                name = f"{row['name']}-merged-f{f:g}"
                if name not in self.rows:
                    self.rows[name] = self._made(row, name, last, f)
                    self._folder.mkdir(exist_ok=True)
                    save_rows(self._folder, self.rows.values())
                losses[row["name"]] = self.rows[name]["final_loss"]
        return losses

    def _made(self, row: Mapping[str, Any], name: str, last: int, f: float) -> dict[str, Any]:
        from danalab.train.evaluation import evaluate_run
        from danalab.train.run.merge import merge_run

        run = self._source / row["run"]
        with TemporaryDirectory() as scratch:
            merge_run(run, Path(scratch) / name, steps=merged_steps(last), decay=self._decay)
            loss = evaluate_run(Path(scratch) / name).loss
        part = last / row["settings"]["iterations"]
        end = {"tokens": round(part * row["tokens"]), "flops": part * row["flops"]}
        points = validation_points({**row, "curve": self._source / row["curve"]})
        before = [point for point in points if point["step"] < last]
        return {
            **row, **end, "optimizer_flops": None,
            "name": name, "run": os.path.relpath(run, self._folder), "merged": self._decay,
            "curve": FILE, "points": [*before, {"step": last, **end, "val/loss": loss}],
            "final_loss": loss, "val_share": 1.0, "best_loss": None, "seconds": None, "device_hours": None,
            "settings": {**row["settings"], "iterations": last, "tokens_per_param": CHINCHILLA * f},
        }  # fmt: skip
