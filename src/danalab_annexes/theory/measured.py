"""Measured language-model curves compared with the theory: a heuristic, and marked as one wherever it is shown.

The theory's curve is limit + A t^-s. With one limit for all optimizers (the same model and data), each curve gives an
exponent s; the theory predicts the ratio of a logarithmic-time optimizer's exponent to its baseline's.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import minimize_scalar

from danalab.errors import UserError
from danalab.ladder.fit.tuning import Tuned, tune
from danalab.ladder.rows import ladder_file, read_ladder, validation_points
from danalab.ladder.saving import curve_arrays, on_one_grid
from danalab.optim.catalogue import OPTIMIZERS
from danalab.report.data import read_curve
from danalab.sweep.rows import FILE, is_usable

BASELINES = ("adamw", "adamw-decaying-wd", "sgd")
"""Optimizers that can be the baseline; the first of them among the curves is."""
LOG_TIME = {name for name in OPTIMIZERS if OPTIMIZERS.get(name).log_time} - {"sign-dana", "snoo-dana"}
"""Optimizers with a growing logarithmic-time momentum, for which the theory predicts a larger exponent."""


@dataclass(frozen=True)
class Measured:
    """One curve of validation loss."""

    name: str
    opt: str
    size: float
    """Parameters; 0 where unknown."""
    tokens: np.ndarray
    flops: np.ndarray
    loss: np.ndarray
    """[nats/token]"""


@dataclass(frozen=True)
class ShapeFit:
    """Curves fitted by limit + A x^-s with one limit."""

    limit: float
    exponents: list[float]
    amplitudes: list[float]
    r2: float
    """Of all log residual losses together."""


def fit_shapes(curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> ShapeFit:
    """Fit (x, loss) curves by limit + A_i x^-s_i with a common limit between 0 and the smallest loss.

    The limit is the one with the smallest squared relative residual of the losses.
    """
    if not curves or any(len(x) < 4 for x, _ in curves):
        raise UserError("a shape needs at least four points in every curve; evaluate more often, or take a longer run")
    smallest = min(float(y.min()) for _, y in curves)

    def lines(limit: float) -> list[tuple[float, float]]:
        fits = [np.polyfit(np.log(x), np.log(y - limit), 1) for x, y in curves]
        return [(-float(f[0]), math.exp(float(f[1]))) for f in fits]

    def cost(limit: float) -> float:
        fitted = zip(curves, lines(limit), strict=True)
        return sum(float(np.mean((limit + A * x**-s - y) ** 2 / y**2)) for (x, y), (s, A) in fitted)

    grid = np.linspace(0, 0.995, 60) * smallest
    start = int(np.argmin([cost(g) for g in grid]))
    low, high = grid[max(start - 1, 0)], grid[min(start + 1, len(grid) - 1)]
    limit = float(minimize_scalar(cost, bounds=(low, high), method="bounded").x)  # pyright: ignore[reportAttributeAccessIssue]
    fitted = lines(limit)
    residual = np.concatenate(
        [np.log(y - limit) - np.log(A * x**-s) for (x, y), (s, A) in zip(curves, fitted, strict=True)]
    )
    spread = np.concatenate([np.log(y - limit) - np.log(y - limit).mean() for _, y in curves])
    r2 = 1 - float(residual @ residual) / max(float(spread @ spread), 1e-300)
    return ShapeFit(limit, [s for s, _ in fitted], [A for _, A in fitted], r2)


@dataclass(frozen=True)
class ExponentRatio:
    """One optimizer against the baseline."""

    name: str
    opt: str
    exponent: float
    ratio_measured: float
    """Exponent over the baseline's."""
    ratio_predicted: float | None
    """The theory's value of this ratio; None where it makes no prediction."""


@dataclass(frozen=True)
class MeasuredComparison:
    """Measured curves, their fit, and the comparison with the theory."""

    curves: list[Measured]
    windows: list[tuple[np.ndarray, np.ndarray]]
    axis: str
    fit: ShapeFit
    baseline: int
    rows: list[ExponentRatio]


def compare_curves(measured: Sequence[Measured], speedup: float, *, skip: float = 0.1) -> MeasuredComparison:
    """Exponents in tokens of the curves of one model size, against the baseline's and the theory's `speedup`.

    `speedup` is the predicted ratio of the exponents for logarithmic-time optimizers (`Prediction.speedup`); a share
    `skip` of each run's tokens is left out at the beginning (warm-up). UserError: no baseline, too few points.
    """
    windows = [(m.tokens[keep], m.loss[keep]) for m in measured for keep in [m.tokens >= skip * m.tokens[-1]]]
    return _compare(list(measured), windows, "tokens", speedup)


def compare_ladder(measured: Sequence[Measured], exponents: Mapping[str, float]) -> MeasuredComparison:
    """Final losses against compute, one curve an optimizer, against the baseline and the predicted ratio of exponents.

    UserError: no baseline, fewer than four sizes of an optimizer.
    """
    groups: dict[str, list[Measured]] = {}
    for m in measured:
        groups.setdefault(m.opt, []).append(m)
    merged, windows = [], []
    for opt, members in groups.items():
        finals = np.asarray(sorted((m.flops[-1], m.tokens[-1], m.loss[-1]) for m in members))
        merged.append(Measured(opt, opt, 0.0, finals[:, 1], finals[:, 0], finals[:, 2]))
        windows.append((finals[:, 0], finals[:, 2]))
    return _compare(merged, windows, "FLOPs", exponents["dana-decaying"] / exponents["sgd"])


def _compare(
    curves: list[Measured], windows: list[tuple[np.ndarray, np.ndarray]], axis: str, speedup: float
) -> MeasuredComparison:
    names = [c.opt for c in curves]
    baseline = next((names.index(b) for b in BASELINES if b in names), None)
    if baseline is None:
        raise UserError(f"no baseline among {', '.join(names)}; one of {', '.join(BASELINES)} is needed")
    # Without a unit of its own x^-s has an ill-conditioned amplitude: measure x in the longest curve.
    unit = max(float(x[-1]) for x, _ in windows)
    fit = fit_shapes([(x / unit, y) for x, y in windows])
    base = fit.exponents[baseline]
    theory = [1.0 if c.opt in BASELINES else speedup if c.opt in LOG_TIME else None for c in curves]
    each = zip(curves, fit.exponents, theory, strict=True)
    rows = [ExponentRatio(curve.name, curve.opt, s, s / base, ratio) for curve, s, ratio in each]
    return MeasuredComparison(curves, windows, axis, fit, baseline, rows)


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
