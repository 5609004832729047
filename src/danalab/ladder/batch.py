"""From the tuned runs of a ladder with several batches at equal tokens to critical batches, with intervals.

    log L(B) = log L0 + s log(1 + B / B0)        final loss at batch B [sequences], the rate tuned at each batch
    critical batch:  L(B) = (1 + RISE) L0

A run at batch B is worth tokens / (1 + B / B0) tokens (arXiv 1812.06162, 2505.13738), and the loss is a power of the
tokens near a horizon. A few batches at one horizon do not tell s from B0 (far below B0 only s / B0 acts), so the batch
of a stated loss is given in place of B0. Intervals repeat the tuning, as in `danalab.ladder.horizon`.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from danalab.ladder.budget import tuned_size
from danalab.ladder.fit.statistics import Interval, log_interval
from danalab.ladder.fit.tuning import Row, Tuned, horizon_of, resampler
from danalab.ladder.paired import PairedTest, paired_runs, paired_tests

RISE = 0.01
"""Share by which the loss at the critical batch is above that of small batches."""
LEAST_BATCHES = 4
"""From which a critical batch is fitted."""
_SAME_TOKENS = 1.05  # runs whose tokens differ by less have equal tokens: steps are rounded


@dataclass(frozen=True)
class CriticalBatch:
    """The critical batch of an optimizer on a size and horizon."""

    opt: str
    params: int
    horizon: float
    batch: float
    """[sequences]; infinite where the loss does not rise."""
    interval: Interval | None
    """None: no seed is repeated, so that the noise is not known."""
    measured: tuple[int, int]
    """Least and largest batch; beyond, the critical batch is extrapolated."""


@dataclass(frozen=True)
class BatchAnalysis:
    """The results of a ladder with several batches."""

    rungs: list[list[Tuned]]
    """The tuned runs of all batches at each size and horizon, by optimizer and batch."""
    critical: list[CriticalBatch]
    tests: list[PairedTest]
    """Of each pair of optimizers at each batch where their settings differ."""

    @property
    def tuned(self) -> list[Tuned]:
        """The tuned runs of all batches."""
        return [each for rung in self.rungs for each in rung]

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        critical, tests = ([asdict(each) for each in part] for part in (self.critical, self.tests))
        return {"tuned": [each.as_dict() for each in self.tuned], "critical": critical, "tests": tests}


def analyse_batches(
    tuned: Sequence[Tuned], rows: Sequence[Row], baseline: str, *, n_bootstrap: int = 200, seed: int = 0
) -> tuple[list[Tuned], BatchAnalysis | None]:
    """(the tuned runs at one batch on each rung, the results over batches).

    Of several batches of an optimizer at equal size and tokens, the first part keeps that of the baseline's least loss;
    without any, all is kept and there are no results.
    """
    kept, critical = [], []
    for rung in (rungs := _rungs(tuned)):
        if len({(each.opt, each.batch) for each in rung}) == len({each.opt for each in rung}):
            kept += map(id, rung)
            continue
        one = min(rung, key=lambda each: (each.opt != baseline, each.loss))
        kept += [id(each) for each in rung if each.batch == one.batch]
        for opt in dict.fromkeys(each.opt for each in rung):
            mine = [each for each in rung if each.opt == opt]
            if len(mine) >= LEAST_BATCHES:
                critical.append(_critical(mine, rows, n_bootstrap, np.random.default_rng(seed)))
    if len(kept) == len(tuned):
        return list(tuned), None
    tests = sorted(
        paired_tests(paired_runs(tuned, baseline)), key=lambda each: (each.params, each.first, each.second, each.batch)
    )
    return [each for each in tuned if id(each) in kept], BatchAnalysis(rungs, critical, tests)


def critical_batch(batches: Sequence[float], losses: Sequence[float], rise: float = RISE) -> float:
    """The batch (of ascending ones, `LEAST_BATCHES` or more) whose loss is `rise` above small ones'; infinite: none is.

    The smallest batches are left out where they are themselves `rise` above the least loss.
    """
    b, y = np.asarray(batches, float), np.log(losses)
    first = min(int(np.argmax(y <= y.min() + math.log1p(rise))), len(b) - LEAST_BATCHES + 1)
    b, y = b[first:], y[first:] - y[first:].mean()
    scales = np.geomspace(b[0], 8 * b[-1], 80)
    x = np.log1p(b / scales[:, None])
    x -= x.mean(axis=1, keepdims=True)
    squares = np.sum(x**2, axis=1)
    slopes = np.maximum(x @ y / squares, 0.0)
    best = int(np.argmax(slopes**2 * squares))
    power = math.log1p(rise) / slopes[best] if slopes[best] > 0 else math.inf
    return float(scales[best] * math.expm1(power)) if power < 30 else math.inf


def _rungs(tuned: Sequence[Tuned]) -> list[list[Tuned]]:
    rungs: dict[int, list[list[Tuned]]] = defaultdict(list)
    for each in sorted(tuned, key=lambda each: each.tokens):
        groups = rungs[each.params]
        if not groups or each.tokens > _SAME_TOKENS * groups[-1][0].tokens:
            groups.append([])
        groups[-1].append(each)
    by_batch = lambda each: (each.opt, each.batch)  # noqa: E731
    return [sorted(group, key=by_batch) for _, groups in sorted(rungs.items()) for group in groups]


def _critical(tuned: Sequence[Tuned], rows: Sequence[Row], n: int, rng: np.random.Generator) -> CriticalBatch:
    batches = [each.batch for each in tuned]
    value = critical_batch(batches, [each.loss for each in tuned])
    ends = np.cumsum([len(each.runs) for each in tuned])
    freedom, drawn = int(ends[-1]) - len(tuned), []
    if freedom:
        draw = resampler([tuned_size(each, rows) for each in tuned])
        drawn = [critical_batch(batches, [part.mean() for part in np.split(draw(rng), ends[:-1])]) for _ in range(n)]
    one = tuned[0]
    interval, measured = log_interval(value, drawn, freedom), (batches[0], batches[-1])
    return CriticalBatch(one.opt, one.params, horizon_of(one.runs[0]), value, interval, measured)
