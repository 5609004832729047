"""All horizons of a size from one run at a constant learning rate: their models are made by merging its checkpoints.

    row of horizon f = the run's row with the loss of the merged checkpoints in the last fifth of the steps of f

Source: Tian et al., arXiv 2507.17634; `danalab.train.run.merge` has the equation.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

from danalab.errors import UserError, nearest
from danalab.ladder.plan import PROCEDURES, LadderPlan, Procedure, Rung
from danalab.ladder.rows import validation_points
from danalab.scaling.learning_rate import CHINCHILLA
from danalab.sweep.estimate import plan_of
from danalab.sweep.grid import Cell
from danalab.sweep.rows import FILE, is_usable, save_rows, written_rows
from danalab.train.config.execution import CheckpointSettings
from danalab.train.config.fields import MergeShape, flag

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


class Merging(Procedure):
    """`merge` of a plan. The ladder `folder`/merged has a row for each horizon of each run that has ended."""

    def __init__(self, plan: LadderPlan):
        super().__init__(plan)
        if plan.merge not in (shapes := get_args(MergeShape)):
            raise UserError(f"merge {plan.merge}{nearest(str(plan.merge), shapes)}: {', '.join(shapes)}")
        if plan.rungs()[0].horizon is None or plan.decay_law == "sqrt":
            raise UserError("merge: needs horizons, and a weight decay that does not depend on them (decay_law rules)")
        for settings in (plan.fixed, *plan.variants.values(), *plan.dials.values()):
            for key in ("scheduler", "fract_decay", "keep_steps"):
                if key in settings:
                    raise UserError(f"merge: sets {flag(key)}; leave it out")

    def cell(self, cell: Cell, rung: Rung) -> Cell:
        """With a constant rate and the checkpoints that are merged."""
        config, plan = cell.config(Path()), self.plan
        steps = {
            f: plan_of(replace(config, tokens_per_param=CHINCHILLA * f)).steps for f in plan.horizons_of(rung.size)
        }
        constant = {"scheduler": "wsd", "fract_decay": 0.0, "keep_steps": (kept_steps(steps),)}
        return replace(cell, settings={**cell.settings, **constant})

    def losses(self, folder: Path, rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
        """Add the rows of runs; the losses are those at the longest horizon."""
        merged, losses = folder / "merged", {}
        made = {str(row["name"]): row for row in written_rows(merged / FILE)}
        for row in filter(is_usable, rows):
            named = CheckpointSettings(keep_steps=tuple(row["settings"]["keep_steps"])).kept_steps().items()
            for last, f in sorted((step, float(name[1:])) for step, name in named if name is not None):
                name = f"{row['name']}-merged-f{f:g}"
                if name not in made:
                    made[name] = self._made(folder, row, name, last, f)
                    merged.mkdir(exist_ok=True)
                    save_rows(merged, made.values())
                losses[row["name"]] = made[name]["final_loss"]
        return losses

    def _made(self, folder: Path, row: Mapping[str, Any], name: str, last: int, f: float) -> dict[str, Any]:
        from danalab.train.evaluation import evaluate_run
        from danalab.train.run.merge import merge_run

        run = folder / row["run"]
        with TemporaryDirectory() as scratch:
            merge_run(run, Path(scratch) / name, steps=merged_steps(last), decay=str(self.plan.merge))
            loss = evaluate_run(Path(scratch) / name).loss
        part = last / row["settings"]["iterations"]
        end = {"tokens": round(part * row["tokens"]), "flops": part * row["flops"]}
        points = validation_points({**row, "curve": folder / row["curve"]})
        before = [point for point in points if point["step"] < last]
        return {
            **row, **end, "optimizer_flops": None,
            "name": name, "run": os.path.relpath(run, folder / "merged"), "merged": self.plan.merge,
            "curve": FILE, "points": [*before, {"step": last, **end, "val/loss": loss}],
            "final_loss": loss, "val_share": 1.0, "best_loss": None, "seconds": None, "device_hours": None,
            "settings": {**row["settings"], "iterations": last, "tokens_per_param": CHINCHILLA * f},
        }  # fmt: skip


PROCEDURES.add("merge", Merging)
