"""From the tuned runs of a ladder with several horizons to multipliers, exponents, tests and budgets, with intervals.

Intervals are Student's on the logarithm, with the standard error over resamples of the ladder: each draws new noise
for every trial, chooses the learning rates again, draws the seeds there (`danalab.ladder.fit.tuning`), and fits the
law again.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np

from danalab.errors import UserError
from danalab.ladder.fit.statistics import Interval, log_interval, scipy, student_interval
from danalab.ladder.fit.tuning import Row, Tuned, are_same_runs, resampler, rung_of
from danalab.ladder.horizon.budget import Budget, budget_of, tuned_size
from danalab.ladder.horizon.law import HorizonLaw, HorizonPoint, fit_horizon_law
from danalab.scaling.learning_rate import CHINCHILLA

REFERENCES = (1.0, 1.15, 1.2)
"""Exponents to compare with: no growth, and the two ends of what arXiv 2609.04577 reports for ADana."""


@dataclass(frozen=True)
class Exponent:
    """The equivalent-overtraining exponent of an optimizer against the baseline."""

    value: float
    interval: Interval | None
    """None: no seed is repeated, so that the noise is not known."""


@dataclass(frozen=True)
class Multiplier:
    """Tokens that the baseline needs for the loss of an optimizer, over the tokens that this one had."""

    opt: str
    params: int
    horizon: float
    value: float
    interval: Interval | None
    extrapolated: bool
    """The baseline would reach the loss beyond the horizons that it ran at this size."""


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


@dataclass(frozen=True)
class HorizonAnalysis:
    """The results of a ladder with several horizons."""

    baseline: str
    points: list[HorizonPoint]
    budgets: list[Budget]
    law: HorizonLaw | None = None
    exponents: dict[str, Exponent] = field(default_factory=dict)
    multipliers: list[Multiplier] = field(default_factory=list)
    tests: list[PairedTest] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def equal_budgets(self) -> bool:
        """Whether every optimizer had as many trials on as many dials as every other, on each rung."""
        rungs = {(each.params, each.horizon) for each in self.budgets}
        return len(rungs) == len({(each.params, each.horizon, each.trials, len(each.dials)) for each in self.budgets})

    def as_dict(self) -> dict[str, Any]:
        """Everything but points, for JSON."""
        budgets = [{**asdict(each), "edges": each.edges} for each in self.budgets]
        own = asdict(replace(self, points=[], budgets=[])) | {"equal_budgets": self.equal_budgets, "budgets": budgets}
        return {name: value for name, value in own.items() if name != "points"}


def horizon_of(row: Row) -> float:
    """f = tokens / (20 parameters), by the count of --horizon-basis; rounded steps are ignored."""
    computed = row["tokens"] / (CHINCHILLA * (row.get("total_params") or row["params"]))
    asked = (row["settings"].get("tokens_per_param") or 0) / CHINCHILLA
    return asked if abs(computed - asked) <= 0.05 * asked else computed


def analyse_horizons(
    tuned: Sequence[Tuned], rows: Sequence[Row], baseline: str, *, n_bootstrap: int = 200, seed: int = 0
) -> HorizonAnalysis | None:
    """The results over horizons of tuned runs, with the trials in `rows`; None where no size has several."""
    several = Counter((each.opt, each.params) for each in tuned)
    if not any(count > 1 for count in several.values()):
        return None
    horizons = {id(each): horizon_of(each.runs[0]) for each in tuned}
    points = []
    for each in tuned:
        losses = tuple(row["final_loss"] for row in sorted(each.runs, key=lambda row: row["seed"]))
        points.append(HorizonPoint(each.opt, each.params, horizons[id(each)], losses))
    budgets = [budget_of(each, horizons[id(each)], rows) for each in tuned]
    analysis = HorizonAnalysis(baseline, points, budgets, tests=paired_tests(paired_runs(tuned, baseline)))
    rungs = {(each.params, each.horizon) for each in points if each.opt == baseline}
    kept = [i for i, each in enumerate(points) if (each.params, each.horizon) in rungs]
    lone = {each.opt for each in points} - {points[i].opt for i in kept if several[points[i].opt, points[i].params] > 1}
    if lone:
        analysis.notes.append(f"{', '.join(sorted(lone))}: fewer than two horizons beside {baseline}'s; in no exponent")
    kept = [i for i in kept if points[i].opt not in lone]
    try:
        law = fit_horizon_law([points[i] for i in kept], baseline)
    except UserError as error:
        analysis.notes.append(f"exponents: {error}")
        return analysis
    draws = _resampled([tuned[i] for i in kept], [points[i] for i in kept], rows, law, n_bootstrap, seed)
    return _with_law(analysis, law, [points[i] for i in kept], draws)


@dataclass(frozen=True)
class _Draws:
    laws: list[HorizonLaw]
    points: list[list[HorizonPoint]]
    freedom: Mapping[str, int]  # optimizer -> degrees of freedom of its noise between seeds; 0: not known


def _with_law(
    analysis: HorizonAnalysis, law: HorizonLaw, points: Sequence[HorizonPoint], draws: _Draws
) -> HorizonAnalysis:
    baseline = analysis.baseline
    exponents = {}
    for opt in [opt for opt in law.slopes if opt != baseline]:
        value, drawn = law.exponent(opt), [each.exponent(opt) for each in draws.laws]
        exponents[opt] = Exponent(value, _interval(value, drawn, draws, opt, baseline))
    base = {(each.params, each.horizon): i for i, each in enumerate(points) if each.opt == baseline}
    longest = {params: max(f for p, f in base if p == params) for params, _ in base}
    multipliers = []
    for i, each in enumerate(points):
        if each.opt == baseline:
            continue
        j = base[each.params, each.horizon]

        def of(law: HorizonLaw, points: Sequence[HorizonPoint], i: int = i, j: int = j) -> float:
            losses = [math.exp(points[k].log_loss) for k in (j, i)]
            return math.exp(law.log_multiplier_of(points[i].params, *losses))

        value = of(law, points)
        drawn = [of(*pair) for pair in zip(draws.laws, draws.points, strict=True)]
        interval = _interval(value, drawn, draws, each.opt, baseline)
        beyond = value * each.horizon > longest[each.params]
        multipliers.append(Multiplier(each.opt, each.params, each.horizon, value, interval, beyond))
    return replace(analysis, law=law, exponents=exponents, multipliers=multipliers)


def _interval(value: float, drawn: Sequence[float], draws: _Draws, *opts: str) -> Interval | None:
    """Student's on the logarithm; None where the noise between an optimizer's seeds is not known."""
    freedom = [draws.freedom[opt] for opt in opts]
    return log_interval(value, drawn, sum(freedom) if all(freedom) else 0)


def _resampled(
    tuned: Sequence[Tuned], points: Sequence[HorizonPoint], rows: Sequence[Row], law: HorizonLaw, n: int, seed: int
) -> _Draws:
    rng = np.random.default_rng(seed)
    places = {opt: [i for i, each in enumerate(points) if each.opt == opt] for opt in law.slopes}
    sizes = {opt: [tuned_size(tuned[i], rows) for i in mine] for opt, mine in places.items()}
    freedom = {opt: sum(len(each.seeds) - 1 for each in mine) for opt, mine in sizes.items()}
    resamplers = {opt: resampler(mine) for opt, mine in sizes.items()}
    laws, drawn = [], []
    for _ in range(n if any(freedom.values()) else 0):
        again = list(points)
        for opt, mine in places.items():
            losses = iter(resamplers[opt](rng))
            for i in mine:
                kept = tuple(float(next(losses)) for _ in points[i].losses)
                again[i] = HorizonPoint(opt, points[i].params, points[i].horizon, kept)
        laws.append(fit_horizon_law(again, law.baseline, start=law))
        drawn.append(again)
    return _Draws(laws, drawn, freedom)


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
                pairs.append(PairedRuns(first, second, each.params, f, tuple(common), each.batch))
    return pairs


POWER = 0.8
MOST_SEEDS = 1000


def paired_tests(runs: Sequence[PairedRuns], level: float = 0.95) -> list[PairedTest]:
    """A test for each pair on each rung."""
    return [_test(each, level) for each in runs]


def seeds_needed(gap: float, sd: float, level: float = 0.95, power: float = POWER) -> int | None:
    """Least number of paired seeds by which a two-sided t test shows a mean difference `gap`; None: too many."""
    stats = scipy("scipy.stats")
    if not sd > 0 or gap == 0:
        return 2 if sd == 0 and gap else None

    def power_of(n: int) -> float:
        return stats.nct.sf(stats.t.ppf((1 + level) / 2, n - 1), n - 1, abs(gap) / sd * math.sqrt(n))

    needed = 2 + bisect_left(range(2, MOST_SEEDS + 1), power, key=power_of)
    return needed if needed <= MOST_SEEDS else None


def _test(runs: PairedRuns, level: float) -> PairedTest:
    mean, n = float(runs.differences.mean()), len(runs.losses)
    scale = float(np.exp(np.log(runs.losses).mean()))  # of a difference of logarithms in nats
    interval = p_value = needed = None
    if n > 1:
        sd = float(runs.differences.std(ddof=1))
        error = sd / math.sqrt(n)
        around = student_interval(mean, error, n - 1, level)
        interval = Interval(scale * around.low, scale * around.high, level)
        p_value = float(2 * scipy("scipy.stats").t.sf(abs(mean) / error, n - 1)) if error else float(mean == 0)
        needed = seeds_needed(mean, sd, level)
    pair = (runs.first, runs.second, runs.params, runs.horizon)
    return PairedTest(*pair, scale * mean, interval, p_value, n, needed, runs.batch)
