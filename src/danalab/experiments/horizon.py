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
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np

from danalab.errors import UserError, import_extra
from danalab.experiments.formats import NOT_KNOWN, Table, span
from danalab.experiments.paired import PairedTest, paired_tests
from danalab.experiments.statistics import Interval, log_interval
from danalab.experiments.tuning import Redraw, Tuned

LEAST_HORIZONS = 3
"""Horizons of the baseline at one size at least: its curve has three coefficients."""
REFERENCES = (1.0, 1.15, 1.2)
"""Exponents to compare with: no growth, and the two ends of what arXiv 2609.04577 reports for ADana."""
_BOUND = 100  # token multipliers beyond it are given as bounds: their digits are those of one processor
_SHARES = (0.3, 0.6, 0.8, 0.9, 0.95, 0.98, 0.995)
"""Starting values of F, as shares of the least loss of the size."""
Place = tuple[str, int, float]
"""Optimizer, parameters, horizon."""


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
    places: Sequence[Place],
    log_losses: np.ndarray,
    seeds: Sequence[int],
    baseline: str,
    start: HorizonLaw | None = None,
) -> HorizonLaw:
    """Fit the law to the mean log loss at each place by least squares; from `start`, or a grid of F.

    Places weigh by their number of `seeds`. UserError: too few horizons of the baseline, or of a contender.
    """
    sizes = sorted({params for _, params, _ in places})
    opts = [baseline, *dict.fromkeys(opt for opt, _, _ in places if opt != baseline)]
    counts = Counter((opt, params) for opt, params, _ in set(places))
    horizons = {opt: max(counts[opt, params] for params in sizes) for opt in opts}
    if horizons[baseline] < LEAST_HORIZONS:
        raise UserError(
            f"the law needs {LEAST_HORIZONS} horizons of {baseline} at one size, not {horizons[baseline]}"
        )
    if lacking := [opt for opt in opts if horizons[opt] < 2]:
        raise UserError(f"{', '.join(lacking)}: an exponent needs two horizons at one size")
    size = np.array([sizes.index(params) for _, params, _ in places])
    opt = np.array([opts.index(name) for name, _, _ in places])
    logs = np.log([horizon for _, _, horizon in places])
    centre = float(logs.mean())
    x, y, weight = logs - centre, log_losses, np.sqrt(seeds)
    floor = np.array([np.exp(y[size == i].min()) for i in range(len(sizes))])
    n_sizes, n_opts = len(sizes), len(opts)
    # Columns of the parameters: shares (logit), levels, slopes, gaps of the contenders.
    is_size = (size[:, None] == np.arange(n_sizes)).astype(float)
    is_opt = (opt[:, None] == np.arange(n_opts)).astype(float)
    linear = np.hstack([is_size, -x[:, None] * is_opt, -is_opt[:, 1:]])

    def parts(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        share = 1 / (1 + np.exp(-theta[:n_sizes]))[size]
        return share, floor[size] * share, np.exp(np.clip(linear @ theta[n_sizes:], -60, 60))

    def residuals(theta: np.ndarray) -> np.ndarray:
        _, F, excess = parts(theta)
        return (np.log(F + excess) - y) * weight

    def jacobian(theta: np.ndarray) -> np.ndarray:
        share, F, excess = parts(theta)
        slopes = np.hstack([is_size * (F * (1 - share))[:, None], linear * excess[:, None]])
        return slopes * (weight / (F + excess))[:, None]

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
    fits = [least_squares(residuals, theta, jacobian, max_nfev=400) for theta in starts]
    best = min(fits, key=lambda fit: fit.cost)
    F = floor / (1 + np.exp(-best.x[:n_sizes]))
    levels, slopes, gaps = np.split(best.x[n_sizes:], [n_sizes, n_sizes + n_opts])
    at_size, level = (dict(zip(sizes, values.tolist(), strict=True)) for values in (F, levels))
    slope, gap = (dict(zip(opts, values, strict=True)) for values in (slopes.tolist(), [0.0, *gaps.tolist()]))
    rms = math.sqrt(2 * float(best.cost) / float(np.sum(weight**2)))
    return HorizonLaw(baseline, at_size, level, slope, gap, math.exp(centre), rms)


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
    loss: float
    """Mean over seeds [nats/token]."""
    baseline_loss: float
    seeds: int
    value: float
    interval: Interval | None
    extrapolated: bool
    """The baseline would reach the loss beyond the horizons that it ran at this size."""


@dataclass(frozen=True)
class HorizonAnalysis:
    """The results of a ladder with several horizons."""

    baseline: str
    tests: list[PairedTest]
    law: HorizonLaw | None = None
    exponents: dict[str, Exponent] = field(default_factory=dict)
    multipliers: list[Multiplier] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def analyse_horizons(
    tuned: Sequence[Tuned],
    redraws: Mapping[str, Redraw],
    baseline: str,
    *,
    n_bootstrap: int = 200,
    seed: int = 0,
) -> HorizonAnalysis:
    """The results over horizons of tuned runs; `redraws` has those of each optimizer, in their order."""
    several = Counter((each.opt, each.params) for each in tuned)
    analysis = HorizonAnalysis(baseline, paired_tests(tuned, baseline))
    rungs = {(each.params, each.horizon) for each in tuned if each.opt == baseline}
    shared = [(each.params, each.horizon) in rungs for each in tuned]
    fit = {
        each.opt
        for each, kept in zip(tuned, shared, strict=True)
        if kept and several[each.opt, each.params] > 1
    }
    if lone := sorted({each.opt for each in tuned} - fit):
        analysis.notes.append(
            f"{', '.join(lone)}: fewer than two horizons beside {baseline}'s; in no exponent"
        )
    kept = [i for i, each in enumerate(tuned) if shared[i] and each.opt in fit]
    points = [tuned[i] for i in kept]
    places = [(each.opt, each.params, each.horizon) for each in points]
    logs = np.array([float(np.log(each.losses).mean()) for each in points])
    seeds = [len(each.runs) for each in points]
    try:
        law = fit_horizon_law(places, logs, seeds, baseline)
    except UserError as error:
        analysis.notes.append(f"exponents: {error}")
        return analysis
    freedom = {opt: redraws[opt].freedom for opt in law.slopes}
    every, rng = n_bootstrap if any(freedom.values()) else 0, np.random.default_rng(seed)
    shifts = np.zeros((every, len(tuned)))
    for opt, redraw in redraws.items():
        for i, place in enumerate(place for place, each in enumerate(tuned) if each.opt == opt):
            shifts[:, place] = redraw.shift(i, rng, every).mean(axis=1)
    drawn = [(fit_horizon_law(places, row, seeds, baseline, law), row) for row in logs + shifts[:, kept]]

    def around(opt: str, value: float, values: Sequence[float]) -> Interval | None:
        """Student's on the logarithm; None where the noise between an optimizer's seeds is not known."""
        own = (freedom[opt], freedom[baseline])
        return log_interval(value, values, sum(own) if all(own) else 0)

    for opt in [opt for opt in law.slopes if opt != baseline]:
        p = law.exponent(opt)
        analysis.exponents[opt] = Exponent(p, around(opt, p, [each.exponent(opt) for each, _ in drawn]))
    base = {place[1:]: i for i, place in enumerate(places) if place[0] == baseline}
    for i, (opt, params, horizon) in enumerate(places):
        if opt == baseline:
            continue
        j = base[params, horizon]
        value, *values = (
            math.exp(of.log_multiplier_of(params, math.exp(y[j]), math.exp(y[i])))
            for of, y in [(law, logs), *drawn]
        )
        beyond = value * horizon > max(f for size, f in base if size == params)
        own = (points[i].loss, points[j].loss, seeds[i], value, around(opt, value, values), beyond)
        analysis.multipliers.append(Multiplier(opt, params, horizon, *own))
    return replace(analysis, law=law)


def exponent_table(horizon: HorizonAnalysis) -> Table:
    """A line for each contender: its exponent, and which references the interval contains."""
    lines = []
    for opt, each in horizon.exponents.items():
        known = each.interval
        inside = ["-" if known is None else "yes" if value in known else "no" for value in REFERENCES]
        lines.append([opt, f"{each.value:.3f}", span(each.interval, ".3f"), *inside])
    return ["optimizer", "p", "95% interval", *(f"{value:g} inside" for value in REFERENCES)], lines


def multiplier_table(horizon: HorizonAnalysis) -> Table:
    """A line for each contender, size and horizon."""
    lines = [
        [
            each.opt,
            f"{each.params:,}",
            f"{each.horizon:.3g}",
            f"{each.loss:.4f}",
            f"{each.baseline_loss:.4f}",
            times(each.value) + (" (extrapolated)" if each.extrapolated else ""),
            f"{times(each.interval.low)} to {times(each.interval.high)}" if each.interval else NOT_KNOWN,
            str(each.seeds),
        ]
        for each in sorted(horizon.multipliers, key=lambda each: (each.params, each.horizon, each.opt))
    ]
    losses = ["loss", f"{horizon.baseline}'s loss"]
    return ["optimizer", "parameters", "f", *losses, "multiplier", "95% interval", "seeds"], lines


def times(value: float) -> str:
    """A token multiplier with three digits, or a bound: near the loss that the baseline never reaches it means
    nothing."""
    if value > _BOUND or value < 1 / _BOUND:
        return f"> {_BOUND:,}" if value > 1 else f"< 1/{_BOUND:,}"
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def budget_table(tuned: Sequence[Tuned]) -> Table:
    """A line for each optimizer: settings tried on a rung, the settings varied, best values at an edge."""
    lines = []
    for opt, group in groupby(sorted(tuned, key=lambda each: each.opt), key=lambda each: each.opt):
        mine = list(group)
        edges = [
            f"f={each.horizon:.3g} {each.params:,}: {', '.join(each.edges)}" for each in mine if each.edges
        ]
        dials = ", ".join(dict.fromkeys(name for each in mine for name in each.dials))
        counts = [_range([len(getattr(each, what)) for each in mine]) for what in ("trials", "runs")]
        lines.append([opt, *counts, str(len(mine)), dials, "; ".join(edges) or "none"])
    return ["optimizer", "settings tried", "seeds", "rungs", "dials", "best at an edge"], lines


def _range(values: Sequence[int]) -> str:
    return str(values[0]) if min(values) == max(values) else f"{min(values)} to {max(values)}"


def budget_sentence(tuned: Sequence[Tuned]) -> str:
    """Whether every optimizer had as many trials on as many dials as every other on each rung, and edges."""
    budgets = {(each.params, each.horizon, len(each.trials), len(each.dials)) for each in tuned}
    equal = len(budgets) == len({budget[:2] for budget in budgets})
    words = "Every optimizer had the same number of trials and tuned settings at each size"
    words = words if equal else "Budgets differ between optimizers at some size"
    edges = sum(bool(each.edges) for each in tuned)
    return f"{words}; at {edges} of {len(tuned)} tuned points a best value lies at the edge of its grid."
