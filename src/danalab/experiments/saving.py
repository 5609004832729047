"""Compute saved: compute of the contender over compute of the baseline, at equal validation loss.

    saved = 1 - C_contender / C_baseline

The loss is the higher one of the two final losses. A contender that reaches the baseline's final loss needed C_cross
for it, where its curve first falls to that loss: saved = 1 - C_cross / C_final (arXiv 2602.05298). Another one is
compared at its own final loss, which the baseline's curve passed at C_b: saved = 1 - C_end / C_b, a negative number.
So every size has a number, and the mean over sizes is 0 for equal optimizers. Curves are smoothed first: a first
crossing of a noisy one comes too early. What the baseline saves against itself so is the resolution of a comparison.

Compute counts the optimizer's own matrix products; the same formula on tokens or steps leaves them out.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from danalab.errors import UserError
from danalab.experiments.loss_laws import LossLaw
from danalab.experiments.statistics import Interval, exp, interval

Curve = tuple[np.ndarray, np.ndarray]
"""(cost, loss), ascending in cost."""
Shifts = tuple[np.ndarray, np.ndarray]
"""log(redrawn loss / measured loss) of each run of the baseline, and of the contender: [draws, runs]."""
LEAST_SEEDS = 3
"""Seeds that each side needs for an interval: with fewer the noise is not known."""
SMOOTHED = 0.1
"""Half the range of log compute over which a curve is smoothed; closer evaluations are averaged, others stay."""


@dataclass(frozen=True)
class Saved:
    """Compute saved at one size."""

    saved: float
    """Share of the baseline's compute; negative: the contender needs more."""
    interval: Interval | None
    """Of `saved`, over seeds and the choice of the rate; None: too few seeds to know the noise."""
    is_bound: bool
    """The crossing lies before a curve's first evaluation: the share is at least (where negative, at most) `saved`."""
    behind: float | None = None
    """Where the mean of the contender's runs does not fall to the baseline's final loss: share of the baseline's
    compute at which the baseline had the contender's final loss."""

    @property
    def is_reached(self) -> bool:
        """Whether the contender reached the baseline's final loss."""
        return self.behind is None


def compute_saved(
    baseline_compute: ArrayLike | Sequence[ArrayLike],
    baseline_loss: ArrayLike | Sequence[ArrayLike],
    contender_compute: ArrayLike | Sequence[ArrayLike],
    contender_loss: ArrayLike | Sequence[ArrayLike],
    *,
    redraw: Callable[[np.random.Generator, int], Shifts] | None = None,
    freedom: float | None = None,
    level: float = 0.95,
    n_bootstrap: int = 1000,
    seed: int = 0,
) -> Saved:
    """Compute that the contender saves at equal loss.

    Args:
        baseline_compute, baseline_loss: compute and validation loss of the baseline's curve, 1-D; or a list of curves,
            one per seed.
        contender_compute, contender_loss: the same of the contender.
        redraw: draws the runs again that many times; `freedom` is that of its noise. None: with the scatter of their
            seeds, as if no rate had been chosen.
        level: of the interval, which needs three seeds or more of each.
        n_bootstrap: redrawn sets of runs for the interval; 0: no interval.
    Raises:
        UserError: an empty curve, unequal lengths, NaN losses, or a compute that is not positive.
    """
    base = _Side.of(baseline_compute, baseline_loss, "baseline")
    other = _Side.of(contender_compute, contender_loss, "contender")
    log_ratios, bounds, behinds = _compare(
        base, other, *(np.zeros((1, len(side.finals))) for side in (base, other))
    )
    log_ratio, behind, around = float(log_ratios[0]), float(behinds[0]), None
    if min(len(base.finals), len(other.finals)) >= LEAST_SEEDS and n_bootstrap:
        draw = redraw or _by_seeds(base, other)
        left = freedom if freedom is not None else len(base.finals) + len(other.finals) - 2
        drawn = _compare(base, other, *draw(np.random.default_rng(seed), n_bootstrap))[0]
        logs = interval(log_ratio, drawn, left, level)
        around = Interval(1 - exp(logs.high), 1 - exp(logs.low), level)
    return Saved(1 - exp(log_ratio), around, bool(bounds[0]), None if math.isnan(behind) else behind)


@dataclass(frozen=True)
class _Side:
    """The runs of one optimizer: their smoothed curves on one grid of compute."""

    x: np.ndarray
    losses: np.ndarray  # [runs, points]
    finals: np.ndarray
    end: float  # mean compute of whole runs

    @classmethod
    def of(cls, compute: Any, loss: Any, what: str) -> "_Side":
        if not len(compute) or np.ndim(compute[0]) == 0:
            compute, loss = [compute], [loss]
        arrays = [
            curve_arrays(x, y, f"{what}, run {i}") for i, (x, y) in enumerate(zip(compute, loss, strict=True))
        ]
        curves = [(x, smoothed(x, y)) for x, y in arrays]
        finals = np.array([y[-1] for _, y in curves])
        return cls(*on_one_grid(curves), finals, float(np.mean([x[-1] for x, _ in curves])))


def _by_seeds(base: _Side, other: _Side) -> Callable[[np.random.Generator, int], Shifts]:
    """Normal noise with the standard deviation of each side's seeds."""

    def shift(side: _Side, rng: np.random.Generator, n: int) -> np.ndarray:
        logs = np.log(side.finals)
        return logs.mean() - logs + logs.std(ddof=1) * rng.standard_normal((n, len(logs)))

    return lambda rng, n: (shift(base, rng, n), shift(other, rng, n))


def _compare(
    base: _Side, other: _Side, base_shifts: np.ndarray, other_shifts: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(log(C_contender / C_baseline), is it a bound, `Saved.behind` or NaN) of each draw, at the higher final loss.

    Curves are averaged before a crossing is sought: the crossings of noisy curves come too early on average, as each
    takes its own luckiest evaluation.
    """
    (base_curves, targets), (other_curves, finals) = (
        (np.exp(shifts) @ side.losses / len(side.losses), (np.exp(shifts) * side.finals).mean(axis=1))
        for side, shifts in ((base, base_shifts), (other, other_shifts))
    )
    crossings = first_crossings(other.x, other_curves, targets)
    passed = first_crossings(base.x, base_curves, finals)
    passed = np.where(np.isnan(passed), base.end, passed)
    reached = ~np.isnan(crossings)
    log_ratios = np.log(np.where(reached, crossings / base.end, other.end / passed))
    bounds = np.where(reached, crossings == other.x[0], passed == base.x[0])
    return log_ratios, bounds, np.where(reached, math.nan, passed / base.end)


def curve_arrays(cost: ArrayLike, loss: ArrayLike, what: str = "curve") -> tuple[np.ndarray, np.ndarray]:
    """A curve as two float64 arrays in the order of cost."""
    x, y = np.asarray(cost, float), np.asarray(loss, float)
    if x.ndim != 1 or x.shape != y.shape or not x.size:
        raise UserError(
            f"{what}: compute and loss must be lists of the same length, at least 1; got {x.shape}, {y.shape}"
        )
    if not np.all(np.isfinite(x) & (x > 0)):
        raise UserError(f"{what}: compute must be finite and positive")
    if np.any(np.isnan(y)):
        raise UserError(f"{what}: a loss is NaN; leave such runs out")
    order = np.argsort(x, kind="stable")
    return x[order], y[order]


def smoothed(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Losses of a curve of `curve_arrays`, each by the straight line in log cost through those within `SMOOTHED`."""
    t, known = np.log(x) - math.log(x[-1]), np.isfinite(y)
    low, high = np.searchsorted(t, t - SMOOTHED), np.searchsorted(t, t + SMOOTHED, side="right")
    kept = np.where(known, y, 0.0)
    sums = [
        np.concatenate([[0.0], np.cumsum(part)]) for part in (known, known * t, known * t * t, kept, kept * t)
    ]
    n, t1, t2, y1, ty = (part[high] - part[low] for part in sums)
    spread = n * t2 - t1**2
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.where(spread > 1e-9 * n**2, (n * ty - t1 * y1) / spread, 0.0)
        return np.where(known, (y1 + slope * (n * t - t1)) / n, y)


def first_crossing(x: np.ndarray, y: np.ndarray, target: float) -> float | None:
    """The cost at which a curve of `curve_arrays` first falls to `target`, or None where it never does."""
    crossing = float(first_crossings(x, y[None], np.array([target]))[0])
    return None if math.isnan(crossing) else crossing


def first_crossings(x: np.ndarray, curves: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The cost at which each of the curves [curves, points] first falls to its target; NaN where it never does.

    Between two points the loss is taken to be linear in the logarithm of the cost. A first point that is already below
    is the result; the crossing lies before it.
    """
    below = curves <= targets[:, None]
    after, rows = below.argmax(axis=1), np.arange(len(curves))
    before = np.maximum(after - 1, 0)
    high, low = curves[rows, before], curves[rows, after]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = (high - targets) / (high - low)
        between = np.exp((1 - share) * np.log(x[before]) + share * np.log(x[after]))
    at_point = (after == 0) | (low == targets) | ~np.isfinite(high)
    return np.where(below.any(axis=1), np.where(at_point, x[after], between), math.nan)


def on_one_grid(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """(compute [points], losses [runs, points]): the evaluations of the first curve as far as all curves go.

    A curve that was evaluated at other places is interpolated linearly in the logarithm of compute.
    """
    x = curves[0][0]
    # Equal up to rounding.
    low, high = (
        max(other[0] for other, _ in curves) * (1 - 1e-6),
        min(other[-1] for other, _ in curves) * (1 + 1e-6),
    )
    x = x[(x >= low) & (x <= high)]
    if not x.size:
        raise UserError(
            "runs that differ in their seeds were evaluated over ranges of compute with nothing in common"
        )
    return x, np.array([np.interp(np.log(x), np.log(other), y) for other, y in curves])


@dataclass(frozen=True)
class Gain:
    """Compute saved over a range of losses."""

    mean: float | None
    """By the mean of log ratios over the losses that both measured; None: they have none in common."""
    interval: Interval | None
    interpolated: float | None = None
    """The same mean without a law, between the measured points (`interpolated_saving`)."""


def compute_gain(baseline: LossLaw, contender: LossLaw, *, n_points: int = 25, level: float = 0.95) -> Gain:
    """Compute saved between two laws of compute that were fitted together (their samples are taken in pairs)."""
    low, high = (
        limit(float(law(law.measured[0][end])) for law in (baseline, contender))
        for limit, end in ((max, 1), (min, 0))
    )
    if low >= high:
        return Gain(None, None)
    losses = np.linspace(high, low, n_points).tolist()
    log_ratio = _mean_log_ratio(baseline, contender, losses)
    drawn = [
        _mean_log_ratio(*pair, losses) for pair in zip(baseline.samples, contender.samples, strict=False)
    ]
    if len(drawn) < 2 or not math.isfinite(log_ratio):
        return Gain(1 - exp(log_ratio), None)
    logs = interval(log_ratio, drawn, baseline.freedom, level)
    return Gain(1 - exp(log_ratio), Interval(1 - exp(logs.high), 1 - exp(logs.low), level))


def interpolated_saving(baseline: Curve, contender: Curve) -> float | None:
    """Compute saved over the losses that both measured: (compute, mean final loss) of sizes, log compute between them.

    None: no loss in common. Beside a law's it shows what the form of the law and its common E do.
    """
    frontiers = []
    for compute, loss in (baseline, contender):
        order = np.argsort(compute)
        x, y = np.log(compute[order]), loss[order]
        best = y < np.concatenate([[math.inf], np.minimum.accumulate(y)[:-1]])
        frontiers.append((y[best][::-1], x[best][::-1]))
    low, high = max(y[0] for y, _ in frontiers), min(y[-1] for y, _ in frontiers)
    if low >= high:
        return None
    base, other = (np.interp(np.linspace(low, high, 25), y, x) for y, x in frontiers)
    return 1 - exp(float(np.mean(other - base)))


def _mean_log_ratio(base: LossLaw, other: LossLaw, losses: Sequence[float]) -> float:
    """Mean of log(C_other / C_base) over the losses that both laws reach; NaN where there is none."""
    pairs = [(other.compute_for(loss), base.compute_for(loss)) for loss in losses]
    logs = [math.log(a / b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
    return sum(logs) / len(logs) if logs else math.nan
