"""Compute saved at one size: compute of the contender over compute of the baseline, at equal validation loss.

    saved = 1 - C_contender / C_baseline

The loss is the higher one of the two final losses. A contender that reaches the baseline's final loss needed C_cross
for it, where its curve first falls to that loss: saved = 1 - C_cross / C_final (arXiv 2602.05298). Another one is
compared at its own final loss, which the baseline's curve passed at C_b: saved = 1 - C_end / C_b, a negative number.
So every size has a number, and the mean over sizes is 0 for equal optimizers.

The variance of the log ratio is a sum: for each side that of its seeds drawn again, and what the choice of its
learning rate adds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from danalab.ladder.fit.retuning import Choice
from danalab.ladder.fit.statistics import Interval, Variance, sum_interval
from danalab.ladder.saved.crossing import Curve, curve_arrays, first_crossing, on_one_grid

LEAST_SEEDS = 3
"""Seeds that each side needs for an interval: with fewer the noise is not known."""


@dataclass(frozen=True)
class Saved:
    """Compute saved at one size."""

    saved: float
    """Share of the baseline's compute; negative: the contender needs more."""
    interval: Interval | None
    """Of `saved`, over seeds; None: too few seeds to know the noise."""
    is_bound: bool
    """The crossing lies before a curve's first evaluation: the share is at least (where negative, at most) `saved`."""
    baseline_loss: float
    """Mean final loss of the baseline's runs [nats a token]."""
    n_baseline: int
    n_contender: int
    n_not_reached: int
    """Contender's runs that never fell to `baseline_loss`."""
    behind: float | None = None
    """Where the mean of the contender's runs does not fall to `baseline_loss`: share of the baseline's compute at which
    the baseline had the contender's final loss."""

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
    baseline_choice: Choice | None = None,
    contender_choice: Choice | None = None,
    level: float = 0.95,
    n_bootstrap: int = 1000,
    seed: int = 0,
) -> Saved:
    """Compute that the contender saves at equal loss.

    Args:
        baseline_compute, baseline_loss: compute and validation loss of the baseline's curve, 1-D; or a list of curves,
            one a seed.
        contender_compute, contender_loss: the same of the contender.
        baseline_choice, contender_choice: of the learning rate, where it was tuned.
        level: of the interval, which needs three seeds or more of each.
        n_bootstrap: resamples for the interval; 0: no interval.
    Raises:
        UserError: an empty curve, unequal lengths, NaN losses, or a compute that is not positive.
    """
    base = _Side.of(baseline_compute, baseline_loss, "baseline")
    other = _Side.of(contender_compute, contender_loss, "contender")
    sizes = len(base.finals), len(other.finals)
    target = float(base.finals.mean())
    found = _compare(base, other, np.arange(sizes[0]), np.arange(sizes[1]))
    interval = None
    if min(sizes) >= LEAST_SEEDS and n_bootstrap:
        rng = np.random.default_rng(seed)
        parts: list[Variance] = []
        for resampled in range(2):  # one side at a time: each has its own number of seeds
            picks = [
                [rng.integers(n, size=n) if i == resampled else np.arange(n) for i, n in enumerate(sizes)]
                for _ in range(n_bootstrap)
            ]
            drawn = np.array([_compare(base, other, *pick).log_ratio for pick in picks])
            parts.append(Variance.of_values_drawn_again(drawn, sizes[resampled]))
        parts += _variances_of_choices(base, other, (baseline_choice, contender_choice))
        logs = sum_interval(found.log_ratio, parts, level)
        interval = Interval(1 - math.exp(logs.high), 1 - math.exp(logs.low), level)
    return Saved(
        1 - math.exp(found.log_ratio), interval, found.is_bound, target, *sizes,
        n_not_reached=sum(first_crossing(x, y, target) is None for x, y in other.curves), behind=found.behind,
    )  # fmt: skip


@dataclass(frozen=True)
class _Side:
    """The runs of one optimizer: their curves, and the same on one grid of compute."""

    curves: list[Curve]
    x: np.ndarray
    losses: np.ndarray
    """[runs, points]"""
    finals: np.ndarray
    end: float
    """Mean compute of whole runs."""

    def shifted(self, log_loss: float) -> "_Side":
        """With losses that are exp(log_loss) times as large."""
        return replace(self, losses=self.losses * math.exp(log_loss), finals=self.finals * math.exp(log_loss))

    @classmethod
    def of(cls, compute: Any, loss: Any, what: str) -> "_Side":
        curves = _curves(compute, loss, what)
        finals = np.array([y[-1] for _, y in curves])
        return cls(curves, *on_one_grid(curves), finals, float(np.mean([x[-1] for x, _ in curves])))


@dataclass(frozen=True)
class _Comparison:
    log_ratio: float
    """log(C_contender / C_baseline) at equal loss."""
    is_bound: bool
    behind: float | None


def _compare(base: _Side, other: _Side, base_runs: np.ndarray, other_runs: np.ndarray) -> _Comparison:
    """The mean curves of these runs of both sides at the higher one of their final losses.

    Curves are averaged before a crossing is sought: the crossings of noisy curves come too early on average, as each
    takes its own luckiest evaluation.
    """
    target = float(base.finals[base_runs].mean())
    crossing = first_crossing(other.x, other.losses[other_runs].mean(axis=0), target)
    if crossing is not None:
        return _Comparison(math.log(crossing / base.end), crossing == float(other.x[0]), None)
    loss = float(other.finals[other_runs].mean())
    passed = first_crossing(base.x, base.losses[base_runs].mean(axis=0), loss) or base.end
    return _Comparison(math.log(other.end / passed), passed == float(base.x[0]), passed / base.end)


def _variances_of_choices(base: _Side, other: _Side, choices: Sequence[Choice | None]) -> list[Variance]:
    """Variances of the log ratio from the choice of each side's learning rate."""
    runs = [np.arange(len(side.finals)) for side in (base, other)]
    found = []
    for i, choice in enumerate(choices):
        if choice is None:
            continue
        sides = [(base.shifted(shift), other) if i == 0 else (base, other.shifted(shift)) for shift in choice.shifts]
        ratios = np.array([_compare(*pair, *runs).log_ratio for pair in sides])
        found.append(Variance.resampled(ratios, choice.freedom))
    return found


def _curves(compute: Any, loss: Any, what: str) -> list[Curve]:
    """One curve or several, as a list."""
    if not len(compute) or np.ndim(compute[0]) == 0:
        return [curve_arrays(compute, loss, what)]
    return [curve_arrays(x, y, f"{what}, run {i}") for i, (x, y) in enumerate(zip(compute, loss, strict=True))]
