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

from danalab.ladder.fit.statistics import Interval, small_sample_interval
from danalab.ladder.saved.crossing import Curve, curve_arrays, first_crossing, on_one_grid

LEAST_SEEDS = 3
"""Seeds that each side needs for an interval: with fewer the noise is not known."""


@dataclass(frozen=True)
class Saved:
    """Compute saved at one size."""

    saved: float | None
    """Share of the baseline's compute; negative: more was needed. None: not reached."""
    interval: Interval | None
    """Of `saved`, over seeds; None: not reached, or too few seeds to know the noise. Its low end is minus infinity
    where it lies beyond the contender's curves: not reached."""
    baseline_loss: float
    """Mean final loss of the baseline's runs [nats a token]."""
    n_baseline: int
    n_contender: int
    n_not_reached: int
    """Contender's runs that never fell to `baseline_loss`."""
    behind: float | None = None
    """Where not reached: share of the baseline's compute at which the baseline was where the contender ends."""
    reached_share: float | None = None
    """Share of the resamples in which the loss was reached. None: not reached at all, or too few seeds."""


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
    finals = np.array([y[-1] for _, y in base])
    target = float(np.mean(finals))
    final_compute = float(np.mean([x[-1] for x, _ in base]))
    not_reached = sum(first_crossing(x, y, target) is None for x, y in other)
    counts = (target, len(base), len(other), not_reached)

    x, losses = on_one_grid(other)
    mean = losses.mean(axis=0)
    crossing = first_crossing(x, mean, target)
    if crossing is None:
        return Saved(
            None, None, *counts, behind=_behind(base, float(np.mean([y[-1] for _, y in other])), final_compute)
        )
    interval, reached_share = None, None
    if min(len(base), len(other)) >= LEAST_SEEDS:
        rng = np.random.default_rng(seed)
        over_base = [target - np.mean(rng.choice(finals, len(finals))) for _ in range(n_bootstrap)]
        over_other = [
            losses[rng.integers(len(losses), size=len(losses))].mean(axis=0) - mean for _ in range(n_bootstrap)
        ]
        drawn = [[_log_crossing(x, mean - target, away) for away in group] for group in (over_base, over_other)]
        reached_share = sum(reached for group in drawn for _, reached in group) / (2 * n_bootstrap)
        logs = [np.array([log for log, _ in group]) for group in drawn]
        found = small_sample_interval(math.log(crossing), logs, [len(base), len(other)], level)
        low = -math.inf if found.high > math.log(x[-1]) else 1 - math.exp(found.high) / final_compute
        interval = Interval(low, 1 - math.exp(found.low) / final_compute, level)
    return Saved(1 - crossing / final_compute, interval, *counts, reached_share=reached_share)


def _curves(compute: Any, loss: Any, what: str) -> list[Curve]:
    """One curve, or several, as a list of several."""
    if not len(compute) or np.ndim(compute[0]) == 0:
        return [curve_arrays(compute, loss, what)]
    return [curve_arrays(x, y, f"{what}, run {i}") for i, (x, y) in enumerate(zip(compute, loss, strict=True))]


def _log_crossing(x: np.ndarray, excess: np.ndarray, away: ArrayLike) -> tuple[float, bool]:
    """(Logarithm of the compute at which `excess` + `away` first falls to 0, whether it does).

    Where it doesn't, that of the mirrored resample `excess` - `away` stands for it, as far on the other side: left
    out, intervals would be too narrow, and only lucky contenders would have one.
    """
    reached = first_crossing(x, excess + away, 0.0)
    if reached is not None:
        return math.log(reached), True
    centre, mirrored = first_crossing(x, excess, 0.0), first_crossing(x, excess - away, 0.0)
    assert centre is not None
    assert mirrored is not None  # where excess is at 0 and excess + away above it, excess - away is below it
    return 2 * math.log(centre) - math.log(mirrored), False


def _behind(base: Sequence[Curve], loss: float, final_compute: float) -> float | None:
    """Where the baseline's curve was at a loss, as a share of its compute."""
    x, losses = on_one_grid(base)
    crossing = first_crossing(x, losses.mean(axis=0), loss)
    return None if crossing is None else crossing / final_compute
