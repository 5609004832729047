"""Compute saved at equal loss, from fitted laws, over the losses that both sides measured.

    saved(L) = 1 - C_contender(L) / C_baseline(L)

Negative where the contender needs more. Points beyond the measured range are given only on request, marked as
extrapolated.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from danalab.errors import UserError
from danalab.ladder.fit.loss_law import LossLaw
from danalab.ladder.fit.statistics import Interval, student_interval


@dataclass(frozen=True)
class GainPoint:
    """Compute saved at one loss."""

    loss: float
    baseline_compute: float
    saved: float
    interval: Interval | None
    extrapolated: bool


@dataclass(frozen=True)
class Gain:
    """Compute saved over a range of losses."""

    points: tuple[GainPoint, ...]
    mean: float | None
    """Of the measured points, by the mean of log ratios; None: the two measured no loss in common."""
    interval: Interval | None


def compute_gain(
    baseline: LossLaw, contender: LossLaw, losses: ArrayLike | None = None, *, n_points: int = 25, level: float = 0.95
) -> Gain:
    """Compute saved between two laws of compute that were fitted together (their resamples are taken in pairs).

    Args:
        losses: where to compare; None: `n_points` over the range that both measured.
    Raises:
        UserError: laws of parameters and tokens, or nothing in common and no `losses` given.
    """
    low, high = _common_range(baseline, contender)
    if losses is None:
        if low >= high:
            raise UserError(
                "the two optimizers measured no loss in common; give the losses at which to compare (extrapolated)"
            )
        losses = np.linspace(high, low, n_points)
    points = []
    for loss in np.atleast_1d(np.asarray(losses, float)):
        saved, interval = _saved(baseline, contender, [float(loss)], level)
        points.append(GainPoint(float(loss), baseline.compute_for(loss), saved, interval, not low <= loss <= high))
    inside = [point.loss for point in points if not point.extrapolated]
    if not inside:
        return Gain(tuple(points), None, None)
    return Gain(tuple(points), *_saved(baseline, contender, inside, level))


def _common_range(a: LossLaw, b: LossLaw) -> tuple[float, float]:
    """Losses between the least and the largest compute of both."""
    (a_low, a_high), (b_low, b_high) = a.measured[0], b.measured[0]
    return max(float(a(a_high)), float(b(b_high))), min(float(a(a_low)), float(b(b_low)))


def _saved(base: LossLaw, other: LossLaw, losses: Sequence[float], level: float) -> tuple[float, Interval | None]:
    """Compute saved over some losses by the mean of log ratios, and its interval where the laws have resamples.

    Student's t on the log ratio, as percentiles of few runs are too narrow.
    """
    log_ratio = _mean_log_ratio(base, other, losses)
    drawn = [_mean_log_ratio(*pair, losses) for pair in zip(base.samples, other.samples, strict=False)]
    interval = None
    if len(drawn) > 1 and math.isfinite(log_ratio):
        found = student_interval(log_ratio, float(np.nanstd(drawn, ddof=1)), min(base.freedom, other.freedom), level)
        interval = Interval(1 - math.exp(found.high), 1 - math.exp(found.low), level)
    return 1 - math.exp(log_ratio), interval


def _mean_log_ratio(base: LossLaw, other: LossLaw, losses: Sequence[float]) -> float:
    """Mean of log(C_other / C_base) over the losses that both laws reach; NaN where there is none."""
    pairs = [(other.compute_for(loss), base.compute_for(loss)) for loss in losses]
    logs = [math.log(a / b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
    return sum(logs) / len(logs) if logs else math.nan
