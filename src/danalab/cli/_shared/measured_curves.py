"""Measured loss curves for `danalab theory predict`: of runs, or of the tuned runs of a ladder."""

from pathlib import Path

import numpy as np

from danalab.errors import UserError
from danalab.ladder.fit.tuning import Tuned, is_usable, tune
from danalab.ladder.rows import FILE, ladder_file, read_ladder, validation_points
from danalab.ladder.saving import curve_arrays, on_one_grid
from danalab.report.data import read_curve
from danalab.theory.measured import Measured


def measured_curves(path: Path) -> list[Measured]:
    """Curves of a run folder, a folder of runs, or of a ladder's tuned runs of the longest horizon, mean over seeds."""
    if ladder_file(path) is not None:
        return _of_ladder(path)
    runs = [path] if (path / "metrics.jsonl").is_file() else sorted(p.parent for p in path.glob("*/metrics.jsonl"))
    if not runs:
        raise UserError(f"{path}: neither a run folder, nor a folder of runs, nor a {FILE}")
    return [_of_run(run) for run in runs]


def _of_run(folder: Path) -> Measured:
    curve = read_curve(folder)
    points = np.array([(p.tokens, p.flops, p.val_loss) for p in curve.points if p.tokens > 0], float)
    return Measured(curve.name, curve.opt, float(curve.config.get("params") or 0), *points.T)


def _of_ladder(path: Path) -> list[Measured]:
    usable = [row for row in read_ladder(path) if is_usable(row)]
    if not usable:
        raise UserError(f"{path}: no run has a finite final loss")
    longest: dict[tuple[str, int], Tuned] = {}
    for each in tune(usable, "exact"):  # in the order of optimizer, size and horizon
        longest[each.opt, each.params] = each
    return [Measured(f"{opt}, {size:.3g} parameters", opt, float(size), *_mean_curve(each))
            for (opt, size), each in longest.items()]  # fmt: skip


def _mean_curve(tuned: Tuned) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(tokens, FLOPs, loss), mean over seeds; the final loss alone where the rows have no curves."""
    points = [validation_points(row) for row in tuned.runs]
    if not all(points):
        return np.array([float(tuned.tokens)]), np.array([tuned.flops]), np.array([tuned.loss])
    curves = [curve_arrays([p["tokens"] for p in run], [p["val/loss"] for p in run]) for run in points]
    tokens, losses = on_one_grid(curves)
    return tokens, tokens * (tuned.flops / tuned.tokens), losses.mean(axis=0)
