"""Pairs of optimizers on a rung (a size, horizon and batch), compared by the seeds that both have.

Each rung is judged by the spread of its own seeds: noise differs between rungs, by five times between short runs and
long ones.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from danalab.errors import import_extra
from danalab.experiments.formats import Table, or_dash, span
from danalab.experiments.statistics import Interval, student_interval
from danalab.experiments.tuning import Tuned, are_same_runs, rung_of


@dataclass(frozen=True)
class PairedTest:
    """The difference of two optimizers on a rung."""

    first: str
    second: str
    params: int
    horizon: float
    batch: int
    """0: the rows do not say."""
    n_seeds: int
    difference: float
    """Mean of first's minus second's final loss [nats/token]; negative: the first is better."""
    interval: Interval | None
    """95%; None: there is one seed."""
    p_value: float | None
    """Two-sided, of no difference."""


def paired_tests(tuned: Sequence[Tuned], baseline: str) -> list[PairedTest]:
    """A test for each pair of optimizers on each rung where their settings differ, by the seeds that both have."""
    opts = sorted({each.opt for each in tuned}, key=lambda opt: (opt != baseline, opt))
    rungs = {rung_of(each.runs[0]): each for each in tuned}
    tests = []
    for first, second in combinations(opts, 2):
        for (opt, params, tokens, batch), each in rungs.items():
            other = rungs.get((second, params, tokens, batch))
            if opt != first or other is None or are_same_runs(each, other):
                continue
            mine, theirs = ({row["seed"]: row["final_loss"] for row in side.runs} for side in (each, other))
            common = [(mine[seed], theirs[seed]) for seed in sorted(mine.keys() & theirs.keys())]
            if common:
                place = (each.params, each.horizon, each.runs[0].get("batch") or 0)
                tests.append(PairedTest(first, second, *place, len(common), *paired_t(common)))
    return tests


def paired_t(losses: Sequence[tuple[float, float]]) -> tuple[float, Interval | None, float | None]:
    """(difference, its 95% interval, p value) of the two losses of each seed, by Student's test of their logarithms."""
    logs = np.log(losses)
    differences, scale = logs[:, 0] - logs[:, 1], float(np.exp(logs.mean()))  # scale: from logarithms to nats
    mean, n = float(differences.mean()), len(differences)
    if n == 1:
        return scale * mean, None, None
    error = float(differences.std(ddof=1)) / math.sqrt(n)
    around = student_interval(mean, error, n - 1)
    stats = import_extra("scipy.stats", "paired tests")
    p_value = float(2 * stats.t.sf(abs(mean) / error, n - 1)) if error else float(mean == 0)
    return scale * mean, Interval(scale * around.low, scale * around.high), p_value


def pair_table(tests: Sequence[PairedTest]) -> Table:
    """A line for each pair and size, at the longest horizon that both have; with the batch where there are several."""
    longest = {}
    for test in sorted(tests, key=lambda test: test.horizon):
        longest[test.first, test.second, test.params] = test
    shown = sorted(longest.values(), key=lambda test: test.params)
    several = len({test.batch for test in shown}) > 1
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
        ]
        for test in shown
    ]
    place = ["parameters", "f", *(["batch"] if several else [])]
    return ["pair", *place, "difference [nats]", "95% interval", "p value", "seeds"], lines
