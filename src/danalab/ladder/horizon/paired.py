"""Differences between two optimizers paired by seed: equal seeds have equal initial weights and data.

A pair's standard deviation is that of the differences of log losses around their mean on each rung, pooled over rungs:
a rung alone has two or three seeds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from danalab.ladder.fit.statistics import Interval, scipy, student_interval

POWER = 0.8
MOST_SEEDS = 1000


@dataclass(frozen=True)
class PairedRuns:
    """The runs of two optimizers on a rung that have equal seeds."""

    first: str
    second: str
    params: int
    horizon: float
    losses: tuple[tuple[float, float], ...]
    """(first's, second's) final loss of each seed [nats/token]."""

    @property
    def differences(self) -> np.ndarray:
        """log(first's loss / second's) of each seed."""
        pairs = np.log(self.losses)
        return pairs[:, 0] - pairs[:, 1]


@dataclass(frozen=True)
class PairedTest:
    """The difference of two optimizers on a rung."""

    first: str
    second: str
    params: int
    horizon: float
    difference: float
    """Mean of first's minus second's final loss [nats/token]; negative: the first is better."""
    interval: Interval | None
    """None: no seed is repeated on any rung."""
    p_value: float | None
    """Two-sided, of no difference."""
    n_seeds: int
    seeds_needed: int | None
    """Seeds that show a gap of this size at the 5% level in four of five repetitions; None: not known, or more than
    `MOST_SEEDS`."""


def paired_tests(runs: Sequence[PairedRuns], level: float = 0.95) -> list[PairedTest]:
    """A test for each pair on each rung."""
    found = []
    for pair in dict.fromkeys((each.first, each.second) for each in runs):
        mine = [each for each in runs if (each.first, each.second) == pair]
        freedom = sum(len(each.losses) - 1 for each in mine)
        scatter = sum(float(np.sum((each.differences - each.differences.mean()) ** 2)) for each in mine)
        sd = math.sqrt(scatter / freedom) if freedom else math.nan
        found += [_test(each, sd, freedom, level) for each in mine]
    return found


def seeds_needed(gap: float, sd: float, level: float = 0.95, power: float = POWER) -> int | None:
    """Least number of paired seeds with which a two-sided t test shows `gap` with this power; None: too many.

    Args:
        gap, sd: mean and standard deviation of the differences, in the same unit.
    """
    stats = scipy("scipy.stats")
    if not sd > 0 or gap == 0:
        return 2 if sd == 0 and gap else None
    for n in range(2, MOST_SEEDS + 1):
        critical = stats.t.ppf((1 + level) / 2, n - 1)
        if stats.nct.sf(critical, n - 1, abs(gap) / sd * math.sqrt(n)) >= power:
            return n
    return None


def all_pairs(opts: Sequence[str]) -> list[tuple[str, str]]:
    """Every two optimizers, once."""
    return list(combinations(opts, 2))


def _test(runs: PairedRuns, sd: float, freedom: int, level: float) -> PairedTest:
    mean, n = float(runs.differences.mean()), len(runs.losses)
    scale = float(np.exp(np.log(runs.losses).mean()))  # of a difference of logarithms in nats
    interval = p_value = needed = None
    if freedom:
        error = sd / math.sqrt(n)
        around = student_interval(mean, error, freedom, level)
        interval = Interval(scale * around.low, scale * around.high, level)
        p_value = float(2 * scipy("scipy.stats").t.sf(abs(mean) / error, freedom)) if error else float(mean == 0)
        needed = seeds_needed(mean, sd, level)
    return PairedTest(
        runs.first, runs.second, runs.params, runs.horizon, scale * mean, interval, p_value, n, needed
    )  # fmt: skip
