"""Pairs of optimizers on a rung (a size, horizon and batch), compared by the seeds that both have.

Each rung is judged by the spread of its own seeds: noise differs between rungs, by five times between short runs and
long ones.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from danalab.errors import import_extra
from danalab.experiments.formats import Table, or_dash, span
from danalab.experiments.statistics import Interval, student_interval
from danalab.experiments.tuning import Tuned, are_same_runs, horizon_of, rung_of


@dataclass(frozen=True)
class PairedRuns:
    """The runs of two optimizers on a rung that have equal seeds."""

    first: str
    second: str
    params: int
    horizon: float
    losses: tuple[tuple[float, float], ...]
    """(first's, second's) final loss of each seed [nats/token]."""
    batch: int = 0
    """0: the rows do not say."""

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
    """By the spread of this rung's own seeds, as rungs differ in their noise; None: there is one seed."""
    p_value: float | None
    """Two-sided, of no difference."""
    n_seeds: int
    seeds_needed: int | None
    """Seeds that show a gap of this size at the 5% level in four of five repetitions; None: not known, or more than
    `MOST_SEEDS`."""
    batch: int = 0


def paired_runs(tuned: Sequence[Tuned], baseline: str) -> list[PairedRuns]:
    """All pairs of optimizers on each rung that differ in their settings there, with the seeds that both have."""
    opts = sorted({each.opt for each in tuned}, key=lambda opt: (opt != baseline, opt))
    cells = {rung_of(each.runs[0]): each for each in tuned}
    pairs = []
    for first, second in combinations(opts, 2):
        for (opt, params, tokens, batch), each in cells.items():
            other = cells.get((second, params, tokens, batch))
            if opt != first or other is None or are_same_runs(each, other):
                continue
            mine, theirs = ({row["seed"]: row["final_loss"] for row in side.runs} for side in (each, other))
            common = [(mine[s], theirs[s]) for s in sorted(mine.keys() & theirs.keys())]
            if common:
                f = horizon_of(each.runs[0])
                pairs.append(
                    PairedRuns(first, second, each.params, f, tuple(common), each.runs[0].get("batch") or 0)
                )
    return pairs


LEVEL, POWER = 0.95, 0.8
MOST_SEEDS = 1000


def seeds_needed(gap: float, sd: float, level: float = LEVEL) -> int | None:
    """Least number of paired seeds by which a two-sided t test shows a mean difference `gap`; None: too many."""
    stats = import_extra("scipy.stats", "paired tests")
    if not sd > 0 or gap == 0:
        return 2 if sd == 0 and gap else None

    def power_of(n: int) -> float:
        return stats.nct.sf(stats.t.ppf((1 + level) / 2, n - 1), n - 1, abs(gap) / sd * math.sqrt(n))

    needed = 2 + bisect_left(range(2, MOST_SEEDS + 1), POWER, key=power_of)
    return needed if needed <= MOST_SEEDS else None


def paired_tests(runs: Sequence[PairedRuns]) -> list[PairedTest]:
    """A test for each pair on each rung."""
    return list(map(_test, runs))


def _test(runs: PairedRuns) -> PairedTest:
    mean, n = float(runs.differences.mean()), len(runs.losses)
    scale = float(np.exp(np.log(runs.losses).mean()))  # of a difference of logarithms in nats
    interval = p_value = needed = None
    if n > 1:
        sd = float(runs.differences.std(ddof=1))
        error = sd / math.sqrt(n)
        around = student_interval(mean, error, n - 1, LEVEL)
        interval = Interval(scale * around.low, scale * around.high, LEVEL)
        stats = import_extra("scipy.stats", "paired tests")
        p_value = float(2 * stats.t.sf(abs(mean) / error, n - 1)) if error else float(mean == 0)
        needed = seeds_needed(mean, sd)
    pair = (runs.first, runs.second, runs.params, runs.horizon)
    return PairedTest(*pair, scale * mean, interval, p_value, n, needed, runs.batch)


def tests_table(tests: Sequence[PairedTest]) -> Table:
    """A line for each test, with the batch where there are several."""
    several = len({test.batch for test in tests}) > 1
    lines = [
        [
            f"{test.first} - {test.second}",
            f"{test.params:,}",
            f"{test.horizon:.3g}",
            *([str(test.batch)] if several else []),
            f"{test.difference:+.4f}",
            span(test.interval, "+.4f"),
            or_dash(test.p_value, ".2g"),
            str(test.n_seeds),
            or_dash(test.seeds_needed, "d"),
        ]
        for test in tests
    ]
    needed, batch = f"seeds for {POWER:.0%} power", ["batch"] if several else []
    return [
        "pair",
        "parameters",
        "f",
        *batch,
        "difference [nats]",
        "95% interval",
        "p value",
        "seeds",
        needed,
    ], lines
