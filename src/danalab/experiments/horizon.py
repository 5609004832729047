"""Study: the horizon. From tuned runs at several horizons to multipliers, exponents, tests and budgets, with intervals.

Intervals are Student's on the logarithm, over ladders that are drawn again (`danalab.experiments.tuning.Redraw`) and
fitted again.

The law of the final loss over horizons, of all optimizers together.

    L(P, f) = F(P) + exp( a(P) - gap - s log(f / f0) )         baseline: gap = 0, s = b

F, the loss at this size without end of tokens, and a, the baseline's excess over it at f0, belong to a size; b, gap and
s to an optimizer. The contender at f is where the baseline is at f_eq:

    log(f_eq / f0) = gap / b + p log(f / f0),   p = s / b      equivalent-overtraining exponent
    f_eq / f                                                   token multiplier

p = 1 is a gain that does not change with the horizon, p > 1 one that grows.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean, median
from typing import Any

import numpy as np

from danalab.errors import UserError, import_extra
from danalab.experiments.budget import TuningBudget, budget_of
from danalab.experiments.formats import NOT_KNOWN, Table, span, yes_or_no
from danalab.experiments.paired import PairedTest, paired_runs, paired_tests, tests_table
from danalab.experiments.statistics import Interval, log_interval
from danalab.experiments.tuning import Redraw, Tuned, horizon_of

LEAST_HORIZONS = 3
"""Horizons of the baseline at one size at least: its curve has three coefficients."""
_BOUND = 100  # token multipliers beyond it are given as bounds: their digits are those of one processor
_SHARES = (
    0.3,
    0.6,
    0.8,
    0.9,
    0.95,
    0.98,
    0.995,
)  # starting values of F, as shares of the least loss of the size


@dataclass(frozen=True)
class HorizonPoint:
    """The tuned runs of an optimizer on a rung."""

    opt: str
    params: int
    horizon: float
    losses: tuple[float, ...]
    """Final losses, one per seed [nats/token]."""

    @property
    def log_loss(self) -> float:
        """Mean of the logarithm of the loss over seeds."""
        return float(np.log(self.losses).mean())


@dataclass(frozen=True)
class HorizonLaw:
    """A fitted law."""

    baseline: str
    floors: Mapping[int, float]
    """Parameters -> F [nats/token]."""
    levels: Mapping[int, float]
    """Parameters -> a."""
    slopes: Mapping[str, float]
    """Optimizer -> s; the baseline's is b."""
    gaps: Mapping[str, float]
    """Optimizer -> gap; the baseline's is 0."""
    centre: float
    """f0."""
    rms: float
    """Of the residuals of log losses, weighted by seeds."""

    def __call__(self, opt: str, params: int, horizon: float) -> float:
        """Final loss [nats/token]."""
        excess = self.levels[params] - self.gaps[opt] - self.slopes[opt] * math.log(horizon / self.centre)
        return self.floors[params] + math.exp(excess)

    def exponent(self, opt: str) -> float:
        """p of an optimizer against the baseline."""
        return self.slopes[opt] / self.slopes[self.baseline]

    def log_multiplier(self, opt: str, horizon: float) -> float:
        """log(f_eq / f) by the law."""
        gap = self.gaps[opt] / self.slopes[self.baseline]
        return gap + (self.exponent(opt) - 1) * math.log(horizon / self.centre)

    def log_multiplier_of(self, params: int, baseline_loss: float, loss: float) -> float:
        """log(f_eq / f) of a measured loss beside the baseline's at the same horizon.

        The baseline's curve passes through its own loss with the law's F and b. Infinite where `loss` is not above F,
        which no horizon reaches; NaN where the baseline's is not.
        """
        base, mine = baseline_loss - self.floors[params], loss - self.floors[params]
        if base <= 0:
            return math.nan
        return (math.log(base) - math.log(mine)) / self.slopes[self.baseline] if mine > 0 else math.inf


def fit_horizon_law(
    points: Sequence[HorizonPoint], baseline: str, start: HorizonLaw | None = None
) -> HorizonLaw:
    """Fit the law by least squares of log losses, weighted by the number of seeds; from `start`, or a grid of F.

    UserError: too few horizons of the baseline, or of a contender.
    """
    sizes = sorted({point.params for point in points})
    opts = [baseline, *dict.fromkeys(point.opt for point in points if point.opt != baseline)]
    _check(points, baseline, sizes, opts)
    row = {params: i for i, params in enumerate(sizes)}
    column = {opt: i for i, opt in enumerate(opts)}
    size = np.array([row[point.params] for point in points])
    opt = np.array([column[point.opt] for point in points])
    logs = np.log([point.horizon for point in points])
    centre = float(logs.mean())
    x = logs - centre
    y = np.array([point.log_loss for point in points])
    weight = np.sqrt([len(point.losses) for point in points])
    floor = np.array([np.exp(y[size == i].min()) for i in range(len(sizes))])
    n_sizes, n_opts = len(sizes), len(opts)
    # Columns of the parameters: shares (logit), levels, slopes, gaps of the contenders.
    is_size = (size[:, None] == np.arange(n_sizes)).astype(float)
    is_opt = (opt[:, None] == np.arange(n_opts)).astype(float)
    linear = np.hstack([is_size, -x[:, None] * is_opt, -is_opt[:, 1:]])

    def parts(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        share = 1 / (1 + np.exp(-theta[:n_sizes]))
        return (floor * share)[size], np.exp(np.clip(linear @ theta[n_sizes:], -60, 60))

    def residuals(theta: np.ndarray) -> np.ndarray:
        F, excess = parts(theta)
        return (np.log(F + excess) - y) * weight

    def started(share: float) -> np.ndarray:
        excess = np.log(np.exp(y) - share * floor[size])
        level = np.linalg.lstsq(linear * weight[:, None], excess * weight, rcond=None)[0]
        return np.concatenate([np.full(n_sizes, math.log(share / (1 - share))), level])

    starts = (
        [started(share) for share in _SHARES]
        if start is None
        else [_theta(start, sizes, opts, floor, centre)]
    )
    least_squares = import_extra("scipy.optimize", "the law of the horizon").least_squares
    fits = [least_squares(residuals, theta, method="trf", max_nfev=400) for theta in starts]
    best = min(fits, key=lambda fit: fit.cost)
    F = floor / (1 + np.exp(-best.x[:n_sizes]))
    levels, slopes, gaps = np.split(best.x[n_sizes:], [n_sizes, n_sizes + n_opts])
    at_size, level = (dict(zip(sizes, values.tolist(), strict=True)) for values in (F, levels))
    slope, gap = (dict(zip(opts, values, strict=True)) for values in (slopes.tolist(), [0.0, *gaps.tolist()]))
    rms = math.sqrt(2 * float(best.cost) / float(np.sum(weight**2)))
    return HorizonLaw(baseline, at_size, level, slope, gap, math.exp(centre), rms)


def _check(points: Sequence[HorizonPoint], baseline: str, sizes: Sequence[int], opts: Sequence[str]) -> None:
    rungs = {(point.opt, point.params, point.horizon) for point in points}
    horizons = {
        opt: max(sum(rung[:2] == (opt, params) for rung in rungs) for params in sizes) for opt in opts
    }
    if horizons[baseline] < LEAST_HORIZONS:
        raise UserError(
            f"the law needs {LEAST_HORIZONS} horizons of {baseline} at one size, not {horizons[baseline]}"
        )
    lacking = [opt for opt in opts if horizons[opt] < 2]
    if lacking:
        raise UserError(f"{', '.join(lacking)}: an exponent needs two horizons at one size")


def _theta(
    law: HorizonLaw, sizes: Sequence[int], opts: Sequence[str], floor: np.ndarray, centre: float
) -> np.ndarray:
    """The search parameters of a law at these points."""
    share = np.clip([law.floors[params] for params in sizes] / floor, 1e-6, 1 - 1e-6)
    moved = centre - math.log(law.centre)
    base = law.slopes[law.baseline]
    return np.concatenate(
        [
            np.log(share / (1 - share)),
            [law.levels[params] - base * moved for params in sizes],
            [law.slopes[opt] for opt in opts],
            [law.gaps[opt] + (law.slopes[opt] - base) * moved for opt in opts[1:]],
        ]
    )


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
class HorizonAnalysis:
    """The results of a ladder with several horizons."""

    baseline: str
    points: list[HorizonPoint]
    budgets: list[TuningBudget]
    law: HorizonLaw | None = None
    exponents: dict[str, Exponent] = field(default_factory=dict)
    multipliers: list[Multiplier] = field(default_factory=list)
    tests: list[PairedTest] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def equal_budgets(self) -> bool:
        """Whether every optimizer had as many trials on as many dials as every other, on each rung."""
        rungs = {(each.params, each.horizon) for each in self.budgets}
        return len(rungs) == len(
            {(each.params, each.horizon, each.trials, len(each.dials)) for each in self.budgets}
        )

    def as_dict(self) -> dict[str, Any]:
        """Everything but points, for JSON."""
        budgets = [{**asdict(each), "edges": each.edges} for each in self.budgets]
        own = asdict(replace(self, points=[], budgets=[])) | {
            "equal_budgets": self.equal_budgets,
            "budgets": budgets,
        }
        return {name: value for name, value in own.items() if name != "points"}


def analyse_horizons(
    tuned: Sequence[Tuned],
    redraws: Mapping[str, Redraw],
    baseline: str,
    *,
    n_bootstrap: int = 200,
    seed: int = 0,
) -> HorizonAnalysis | None:
    """The results over horizons of tuned runs; `redraws` has those of each optimizer, in their order.

    None where no size has several horizons.
    """
    several = Counter((each.opt, each.params) for each in tuned)
    if not any(count > 1 for count in several.values()):
        return None
    horizons = {id(each): horizon_of(each.runs[0]) for each in tuned}
    points = []
    for each in tuned:
        points.append(HorizonPoint(each.opt, each.params, horizons[id(each)], tuple(map(float, each.losses))))
    budgets = [budget_of(each, horizons[id(each)]) for each in tuned]
    analysis = HorizonAnalysis(baseline, points, budgets, tests=paired_tests(paired_runs(tuned, baseline)))
    rungs = {(each.params, each.horizon) for each in points if each.opt == baseline}
    kept = [i for i, each in enumerate(points) if (each.params, each.horizon) in rungs]
    lone = {each.opt for each in points} - {
        points[i].opt for i in kept if several[points[i].opt, points[i].params] > 1
    }
    if lone:
        analysis.notes.append(
            f"{', '.join(sorted(lone))}: fewer than two horizons beside {baseline}'s; in no exponent"
        )
    kept = [i for i in kept if points[i].opt not in lone]
    try:
        law = fit_horizon_law([points[i] for i in kept], baseline)
    except UserError as error:
        analysis.notes.append(f"exponents: {error}")
        return analysis
    draws = _redrawn(points, kept, redraws, law, n_bootstrap, seed)
    return _with_law(analysis, law, [points[i] for i in kept], draws)


@dataclass(frozen=True)
class _Draws:
    laws: list[HorizonLaw]
    points: list[list[HorizonPoint]]
    freedom: Mapping[str, float]  # optimizer -> degrees of freedom of its noise between seeds; 0: not known


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


def _redrawn(
    points: Sequence[HorizonPoint],
    kept: Sequence[int],
    redraws: Mapping[str, Redraw],
    law: HorizonLaw,
    n: int,
    seed: int,
) -> _Draws:
    """Laws of the `kept` points of ladders that are drawn again."""
    rng = np.random.default_rng(seed)
    freedom = {opt: redraws[opt].freedom for opt in law.slopes}
    laws, drawn = [], []
    every = n if any(freedom.values()) else 0
    shifts = {opt: redraw.shifts(rng, every) for opt, redraw in redraws.items()}
    for i in range(every):
        left = {opt: iter(own[i]) for opt, own in shifts.items()}
        again = []
        for place, each in enumerate(points):
            moved = np.array([next(left[each.opt]) for _ in each.losses])
            if place in kept:
                again.append(replace(each, losses=tuple(each.losses * np.exp(moved))))
        laws.append(fit_horizon_law(again, law.baseline, start=law))
        drawn.append(again)
    return _Draws(laws, drawn, freedom)


def exponent_table(horizon: HorizonAnalysis) -> Table:
    """A line for each contender: its exponent, and which references the interval contains."""
    lines = []
    for opt, each in horizon.exponents.items():
        inside = [yes_or_no(each.interval and not each.interval.excludes(value)) for value in REFERENCES]
        lines.append([opt, f"{each.value:.3f}", span(each.interval, ".3f"), *inside])
    return ["optimizer", "p", "95% interval", *(f"{value:g} inside" for value in REFERENCES)], lines


def multiplier_table(horizon: HorizonAnalysis) -> Table:
    """A line for each contender, size and horizon."""
    losses = {(each.opt, each.params, each.horizon): each.losses for each in horizon.points}
    lines = []
    for each in sorted(horizon.multipliers, key=lambda each: (each.params, each.horizon, each.opt)):
        mine, theirs = (losses[opt, each.params, each.horizon] for opt in (each.opt, horizon.baseline))
        interval = each.interval
        lines.append(
            [
                each.opt,
                f"{each.params:,}",
                f"{each.horizon:.3g}",
                f"{fmean(mine):.4f}",
                f"{fmean(theirs):.4f}",
                times(each.value) + (" (extrapolated)" if each.extrapolated else ""),
                NOT_KNOWN if interval is None else f"{times(interval.low)} to {times(interval.high)}",
                str(len(mine)),
            ]
        )
    base = horizon.baseline
    return [
        "optimizer",
        "parameters",
        "f",
        "loss",
        f"{base}'s loss",
        "multiplier",
        "95% interval",
        "seeds",
    ], lines


def pair_table(horizon: HorizonAnalysis) -> Table:
    """A line for each pair and size, at the longest horizon that both have."""
    longest: dict[tuple[str, str, int], PairedTest] = {}
    for test in sorted(horizon.tests, key=lambda test: test.horizon):
        longest[test.first, test.second, test.params] = test
    return tests_table(sorted(longest.values(), key=lambda test: test.params))


def budget_table(horizon: HorizonAnalysis) -> Table:
    """A line for each optimizer: trials on a rung, dials with their median gain, best values at an edge."""
    lines = []
    for opt in dict.fromkeys(each.opt for each in horizon.budgets):
        mine = [each for each in horizon.budgets if each.opt == opt]
        edges = [
            f"f={each.horizon:.3g} {each.params:,}: {', '.join(each.edges)}" for each in mine if each.edges
        ]
        gains: dict[str, list[float]] = {}
        for dial in (dial for each in mine for dial in each.dials):
            gains.setdefault(dial.name, []).append(dial.gain)
        lines.append(
            [
                opt,
                _range([each.trials for each in mine]),
                _range([each.seeds for each in mine]),
                str(len(mine)),
                ", ".join(f"{name} {median(values):.4f}" for name, values in gains.items()),
                "; ".join(edges) or "none",
            ]
        )
    return ["optimizer", "settings tried", "seeds", "rungs", "dials (gain, nats)", "best at an edge"], lines


def times(value: float) -> str:
    """A token multiplier with three digits, or a bound: near the loss that the baseline never reaches it means
    nothing."""
    if value > _BOUND or value < 1 / _BOUND:
        return f"> {_BOUND:,}" if value > 1 else f"< 1/{_BOUND:,}"
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def budget_sentence(horizon: HorizonAnalysis) -> str:
    """Whether budgets were equal, and how many best values lie at an edge."""
    edges = sum(bool(each.edges) for each in horizon.budgets)
    words = "Every optimizer had the same number of trials on the same number of dials on each rung"
    words = words if horizon.equal_budgets else "Budgets differ between optimizers on some rung"
    return f"{words}; at {edges} of {len(horizon.budgets)} tuned points a best value lies at the edge of its grid."


def _range(values: Sequence[int]) -> str:
    return str(values[0]) if min(values) == max(values) else f"{min(values)} to {max(values)}"
