"""Compute saved at one size: how much sooner a contender is where the baseline ends.

    saved = 1 - C_cross / C_final

C_cross is the compute at which the contender's validation curve first falls to the baseline's final loss, C_final what
the baseline spent for it (arXiv 2602.05298). A contender that never gets there has no number: it is "not reached".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from danalab.ladder.crossing import curve_arrays, first_crossing
from danalab.ladder.statistics import Interval, small_sample_interval

LEAST_SEEDS = 3
"""Seeds that each side needs for an interval: with fewer the noise is not known."""

Curve = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Saved:
    """Compute saved at one size."""

    saved: float | None
    """Share of the baseline's compute; negative: more was needed. None: not reached."""
    interval: Interval | None
    """Of `saved`, over seeds; None: not reached, or too few seeds to know the noise."""
    baseline_loss: float
    """Mean final loss of the baseline's runs [nats a token]."""
    n_baseline: int
    n_contender: int
    n_not_reached: int
    """Contender's runs that never fell to `baseline_loss`."""
    behind: float | None = None
    """Where not reached: share of the baseline's compute at which the baseline was where the contender ends."""
    reached_share: float | None = None
    """Share of the resamples in which the loss was reached; below 1 there is no interval. None: too few seeds."""


def compute_saved(
    baseline_compute: ArrayLike | Sequence[ArrayLike],
    baseline_loss: ArrayLike | Sequence[ArrayLike],
    contender_compute: ArrayLike | Sequence[ArrayLike],
    contender_loss: ArrayLike | Sequence[ArrayLike],
    *,
    level: float = 0.95,
    n_bootstrap: int = 1000,
    seed: int = 0,
) -> Saved:
    """Compute that the contender saves at the baseline's final loss.

    Args:
        baseline_compute, baseline_loss: compute and validation loss of the baseline's curve, 1-D; or a list of curves,
            one a seed.
        contender_compute, contender_loss: the same of the contender.
        level: of the interval, which needs three seeds or more of each.
        n_bootstrap: resamples for the interval.
    Raises:
        UserError: an empty curve, unequal lengths, NaN losses, or a compute that is not positive.
    """
    base = _curves(baseline_compute, baseline_loss, "baseline")
    other = _curves(contender_compute, contender_loss, "contender")
    finals = [y[-1] for _, y in base]
    target = float(np.mean(finals))
    final_compute = float(np.mean([x[-1] for x, _ in base]))
    not_reached = sum(first_crossing(x, y, target) is None for x, y in other)
    counts = (target, len(base), len(other), not_reached)

    log_share = _log_share(other, target, final_compute)
    if log_share is None:
        return Saved(None, None, *counts, behind=_behind(base, other, final_compute))
    interval, reached_share = None, None
    if min(len(base), len(other)) >= LEAST_SEEDS:
        rng = np.random.default_rng(seed)
        over_base = [
            _log_share(other, float(np.mean(rng.choice(finals, len(finals)))), final_compute)
            for _ in range(n_bootstrap)
        ]
        over_other = [
            _log_share([other[i] for i in rng.integers(len(other), size=len(other))], target, final_compute)
            for _ in range(n_bootstrap)
        ]
        drawn = [*over_base, *over_other]
        reached_share = 1 - drawn.count(None) / len(drawn)
        if None not in drawn:
            logs = [np.array(draws, float) for draws in (over_base, over_other)]
            found = small_sample_interval(log_share, logs, [len(base), len(other)], level)
            interval = Interval(1 - math.exp(found.high), 1 - math.exp(found.low), level)
    return Saved(1 - math.exp(log_share), interval, *counts, reached_share=reached_share)


def _curves(compute: Any, loss: Any, what: str) -> list[Curve]:
    """One curve, or several, as a list of several."""
    if not len(compute) or np.ndim(compute[0]) == 0:
        return [curve_arrays(compute, loss, what)]
    curves = [curve_arrays(x, y, f"{what}, run {i}") for i, (x, y) in enumerate(zip(compute, loss, strict=True))]
    x = curves[0][0]
    if all(len(other) == len(x) and np.allclose(other, x, rtol=1e-6) for other, _ in curves):
        return [(x, y) for _, y in curves]  # evaluated at the same places: one array says so
    return curves


def _log_share(curves: Sequence[Curve], target: float, final_compute: float) -> float | None:
    """Logarithm of C_cross / C_final for the mean of the curves; None: it never crosses.

    The curves are averaged before the crossing is sought: the crossings of noisy curves come too early on average,
    as each takes its own luckiest evaluation.
    """
    x = curves[0][0]
    if all(other is x for other, _ in curves):
        crossing = first_crossing(x, np.add.reduce([y for _, y in curves]) / len(curves), target)
    else:
        crossings = [first_crossing(x, y, target) for x, y in curves]
        known = [crossing for crossing in crossings if crossing is not None]
        if len(known) < len(crossings):
            return None
        crossing = math.exp(sum(map(math.log, known)) / len(known))
    return None if crossing is None else math.log(crossing / final_compute)


def _behind(base: Sequence[Curve], other: Sequence[Curve], final_compute: float) -> float | None:
    """Where the baseline's curve was at the contender's final loss, as a share of its compute."""
    log_share = _log_share(base, float(np.mean([y[-1] for _, y in other])), final_compute)
    return None if log_share is None else math.exp(log_share)
