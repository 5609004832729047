"""The verdict: when to stop, and what to say.

Two anytime-valid tests of the mean of paired differences, which must agree.

Normal: differences x_1, x_2, ... have mean m and standard deviation s, both unknown; n of them have mean xbar and
sample deviation sd. The effect m / s has a Gaussian prior N(0, g), s the scale-invariant prior ds / s. The Bayes factor
against m = m0 then depends on Student's t alone:

    t = sqrt(n) (xbar - m0) / sd          r = 1 / (1 + n g)          v = n - 1
    B_n(m0) = sqrt(r) ((1 + t^2 / v) / (1 + r t^2 / v))^(n / 2)

Bounded: any distribution, but no difference lies further than `bound` c on the side that speaks against the answer. A
gambler who owns 1 stakes a share f of it on each difference being below m0, and another on its being above:

    W_n(m0) = mean over f of prod_i (1 - f + f (c - x_i) / (c - m0))          mirrored for the other side

Under m = m0 both are nonnegative martingales of mean 1 (W falls on average for any m above m0), so they reach 1 / alpha
at any n with probability alpha at most (Ville): one may look after each run and stop for any reason. m0 is excluded
where B >= 1 / alpha and W >= 2 / alpha (two sides), so the interval is right if either assumption is. A difference
beyond the bound ruins the gambler for good. Why a bound is needed: without one, no test of a mean has power (Bahadur &
Savage 1956), since one seed in fifty might fail by any amount.

Sources: the Bayes factor is that of Zellner's and Liang's g-prior for one mean; that it is an e-process: Perez-Ortiz,
Lardy, de Heide & Gruenwald, arXiv 2208.07610; as a confidence sequence: Wang & Ramdas, arXiv 2310.03722; bets:
Waudby-Smith & Ramdas, arXiv 2010.09686.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import numpy as np

from danalab.judge.workers import RunResult

PRIORS = (1.0, 30.0)
"""g: variances of the effect in standard deviations of a paired difference; B_n is the mean of their Bayes factors. The
small one decides effects of 1 to 3 the soonest, the large one effects of 10 after three pairs."""
STAKES = {1.0: 0.5, 0.5: 0.25, 0.25: 0.125, 0.125: 0.0625, 0.0625: 0.0625}
"""f and its weight. The whole is best while the noise is small against the bound, which is usual."""
LARGEST_RATIO = 1e12  # of t^2 / (n - 1), for differences that are all equal
LEAST_PAIRS = 3
_EPSILON = 1e-12


@dataclass(frozen=True)
class Bounds:
    """Confidence sequences at their n-th look."""

    mean: float
    low: float
    """Of both tests together, as is `high`."""
    high: float
    n: int
    normal: tuple[float, float]
    """Of the test for normal differences alone."""


def log_bayes_factor(n: Any, ratio: Any) -> Any:
    """log B_n of t^2 / (n - 1) = ratio, the mean over the priors; numbers or arrays."""
    logs = [0.5 * n * (np.log1p(ratio) - np.log1p(ratio / (1 + n * g))) - 0.5 * np.log1p(n * g) for g in PRIORS]
    return np.logaddexp.reduce(logs) - math.log(len(PRIORS))


def log_wealth(differences: np.ndarray, mean: float, bound: float) -> np.ndarray:
    """log W_n(mean) of the bets on differences below `mean`, after each of them."""
    returns = (bound - differences) / (bound - mean)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = [np.cumsum(np.where(returns < 0, -np.inf, np.log(1 - f + f * returns))) + math.log(weight)
                for f, weight in STAKES.items()]  # fmt: skip
    return np.logaddexp.reduce(logs)


def normal_bounds(differences: Sequence[float], alpha: float) -> tuple[float, float]:
    """The means that the normal test does not exclude; unbounded where n is too small to say anything."""
    n = len(differences)
    least = -math.log(alpha)
    if n < 2 or log_bayes_factor(n, LARGEST_RATIO) < least:
        return -math.inf, math.inf
    low, high = -30.0, math.log(LARGEST_RATIO)  # of log(t^2 / v), in which the evidence grows
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if log_bayes_factor(n, math.exp(middle)) >= least else (middle, high)
    half = math.sqrt(math.exp(high) * (n - 1) / n) * stdev(differences)
    return fmean(differences) - half, fmean(differences) + half


def bounds(differences: Sequence[float], alpha: float, bound: float) -> Bounds:
    """The interval of means that the two tests together do not exclude; `bound` as in `decide`."""
    normal = normal_bounds(differences, alpha)
    values = np.array(differences, float)
    low = min(normal[0], -_highest(-values, alpha, bound))
    high = max(normal[1], _highest(values, alpha, bound))
    return Bounds(fmean(differences) if differences else 0.0, low, high, len(differences), normal)


def _highest(values: np.ndarray, alpha: float, bound: float) -> float:
    """The least mean below `bound` that the bets on lower differences exclude; `bound` where they exclude none."""
    if not len(values) or values.max() > bound:
        return bound
    low, high = float(values.mean()), bound
    for _ in range(50):
        middle = (low + high) / 2
        out = middle < bound and log_wealth(values, middle, bound)[-1] >= math.log(2 / alpha)
        low, high = (low, middle) if out else (middle, high)
    return high


def decisions(differences: Sequence[float], alpha: float, margin: float, bound: float) -> list[str]:
    """The decision after each pair: `better` (the mean of the differences, contender minus baseline, is below 0),
    `worse`, `no difference` (all of the interval is within +- margin), or `undecided`.

    `bound`: how far a difference may speak against an answer; declared before the first pair, never read off the data.
    """
    values = np.array(differences, float)
    n = np.arange(1, len(values) + 1)
    means = np.cumsum(values) / n
    centred = values - (values[0] if len(values) else 0.0)
    squares = np.maximum(np.cumsum(centred**2) - np.cumsum(centred) ** 2 / n, _EPSILON**2)  # (n - 1) sd^2

    def below(xs: np.ndarray, means: np.ndarray, mean: float) -> np.ndarray:
        """Where both tests exclude all means from `mean` on."""
        if mean >= bound:
            return np.zeros(len(xs), bool)
        ratio = np.minimum(n * (means - mean) ** 2 / squares, LARGEST_RATIO)
        normal = (means < mean) & (log_bayes_factor(n, ratio) >= -math.log(alpha))
        return normal & (log_wealth(xs, mean, bound) >= math.log(2 / alpha)) & (n >= LEAST_PAIRS)

    equal = below(values, means, margin) & below(-values, -means, margin)
    answers = np.where(below(values, means, 0.0), "better", np.where(below(-values, -means, 0.0), "worse", "undecided"))
    return np.where(equal, "no difference", answers).tolist()


def decide(differences: Sequence[float], alpha: float, margin: float, bound: float) -> str:
    """The decision after the last pair; see `decisions`."""
    return decisions(differences, alpha, margin, bound)[-1] if len(differences) else "undecided"


def warnings(differences: Sequence[float], bound: float) -> tuple[str, ...]:
    """What speaks against taking the differences as normal: runs beyond the bound, stuck seeds, two groups, skew."""
    values = np.sort(np.array(differences, float))
    n, found = len(values), []
    against = values * -np.sign(np.median(values)) if n else values
    if beyond := int(np.sum(against > bound)):
        found.append(f"{beyond} of {n} pairs speak against the others by more than the bound {bound:.3g}, which rules "
                     "out the answer of the others: some runs may be stuck")  # fmt: skip
    if n < 8 or np.ptp(values) < _EPSILON:
        return tuple(found)
    far = np.abs(values - np.median(values))
    few = 1 + 8 / n  # a small sample's scale is uncertain
    if stuck := int(np.sum(far > OUTLIER * few * np.median(far))):
        found.append(f"{stuck} of {n} pairs lie far from the others: some runs may be stuck")
    cut = 2 + int(np.argmax(np.diff(values)[1:-1]))  # the widest gap that leaves two on either side
    left, right = values[:cut], values[cut:]
    within = math.sqrt((cut * left.var() + (n - cut) * right.var()) / n)
    if not stuck and right.mean() - left.mean() > TWO_GROUPS * few * within and right[0] - left[-1] > 2 * within:
        found.append(f"the pairs form two groups, of {cut} and {n - cut}: some runs may be stuck")
    centred = values - values.mean()
    skew = float(np.mean(centred**3) / np.mean(centred**2) ** 1.5)
    if abs(skew) > SKEWED * math.sqrt(6 * n * (n - 1) / ((n - 2) * (n + 1) * (n + 3))):  # its standard error if normal
        found.append(f"the differences are skewed ({skew:+.1f})")
    return tuple(found)


OUTLIER, TWO_GROUPS, SKEWED = 7.5, 5.0, 3.0
"""Distances from the median in median distances (5 standard deviations if normal); distance of the groups' means in
deviations within them; skewness in its standard errors. Of normal differences at most 2% warn."""

FIRST_SHARE = 0.8  # of alpha, for the first look


def spent(alpha: float, look: int) -> float:
    """Error of the look-th question about one comparison with fresh seeds (1, 2, ...); any number sum to below `alpha`.

    alpha_1 = 0.8 alpha, and alpha_k = 0.2 alpha / (k (k - 1)), of which the first K sum to 0.2 alpha (1 - 1 / K).
    """
    return alpha * (FIRST_SHARE if look == 1 else (1 - FIRST_SHARE) / (look * (look - 1)))


@dataclass(frozen=True)
class PairedVerdict:
    """The answer to one question."""

    contender: str
    baseline: str
    track: str
    decision: str
    """better, worse, no difference or undecided."""
    effect: float
    """Mean of loss(contender) - loss(baseline) over paired seeds; negative is better."""
    low: float
    high: float
    """Confidence sequence of the effect at the last look: of the test for normal differences and of the bets on any
    differences up to `bound` together."""
    normal: tuple[float, float]
    """That of the test for normal differences alone."""
    bound: float
    """How far a pair may speak against the answer; declared before the first pair."""
    alpha: float
    """Error of this answer."""
    contenders: int
    """How many contenders share the error of the call."""
    difference: float
    """Losses that differ by less count as equal."""
    noise: float
    """Standard deviation of the baseline's loss over seeds: the noise floor."""
    pairs: int
    saved: tuple[float, float, float] | None
    """Share of the baseline's compute that the contender needs less for its final loss: the mean over pairs and its
    confidence sequence, with error `alpha` if its logarithms are normal; None where a pair lets it not be told."""
    rates: tuple[float, float]
    """Peak learning rates of contender and baseline."""
    runs: int
    """Runs that were made for it, not read from the ledger."""
    seconds: float
    look: int
    unit: str
    failures: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """Signs of stuck seeds, and of differences that are not normal."""

    def sentence(self) -> str:
        """The answer in one sentence."""
        sides = f"{self.contender} against {self.baseline} on {self.track} is undecided"
        if not self.pairs:
            return f"{sides}: no pair of runs was complete when the budget ended."
        change = f"{abs(self.effect):.4f} {self.unit} {'lower' if self.effect < 0 else 'higher'}"
        words = {
            "better": f"{self.contender} is better than {self.baseline} on {self.track}: its loss is {change}",
            "worse": f"{self.contender} is worse than {self.baseline} on {self.track}: its loss is {change}",
            "no difference": f"{self.contender} and {self.baseline} differ by less than {self.difference:g} "
                             f"{self.unit} on {self.track}: {change}",
            "undecided": f"{sides}: {change}",
        }[self.decision]  # fmt: skip
        normal, low_high = _interval(self.normal), _interval((self.low, self.high))
        interval = f"{low_high} for any differences up to {self.bound:.2g}, {normal} for symmetric or normal ones"
        saved = "" if self.saved is None else (
            f"; {self.saved[0]:+.0%} of the compute saved ({self.saved[1]:+.0%} to {self.saved[2]:+.0%} if normal)"
        )  # fmt: skip
        shared = "" if self.contenders == 1 else f", its share among {self.contenders} contenders"
        trust = f"intervals hold at any time of looking, with error {self.alpha:.2g}{shared}"
        parts = [f"{words} ({interval}){saved}; {self.pairs} paired seeds, noise {self.noise:.4f}; {trust}."]
        return " ".join([*parts, *(f"Warning: {line}." for line in self.warnings)])


def _interval(ends: tuple[float, float]) -> str:
    return f"{ends[0]:+.4f} to {ends[1]:+.4f}"


def compute_saved(pairs: Sequence[tuple[RunResult, RunResult]], alpha: float) -> tuple[float, float, float] | None:
    """Compute saved, pair by pair: 1 - (steps of the contender) / (steps of the baseline) at the higher final loss."""
    if len(pairs) < LEAST_PAIRS or any(side.loss is None for pair in pairs for side in pair):
        return None
    logs = [-log_speed(base, other) for base, other in pairs]
    most = math.log(pairs[0][0].steps[-1])  # no run is faster or slower by more than its length
    low, high = (min(max(end, -most), most) for end in normal_bounds(logs, alpha))
    return 1 - math.exp(fmean(logs)), 1 - math.exp(high), 1 - math.exp(low)


def log_speed(base: RunResult, other: RunResult) -> float:
    """log of (steps of the baseline) / (steps of the contender) at the higher final loss.

    A run without a loss is as slow as its length allows.
    """
    if base.loss is None or other.loss is None:
        most = math.log((base if other.loss is None else other).steps[-1]) if base.loss != other.loss else 0.0
        return -most if other.loss is None else most
    target = max(base.loss, other.loss)
    return math.log(_reached(base, target) / _reached(other, target))


def _reached(run: RunResult, target: float) -> float:
    """Step at which a curve first falls to a loss, linear between measurements."""
    points = list(zip(run.steps, run.losses, strict=True))
    for (s0, y0), (s1, y1) in itertools.pairwise(points):
        if y1 <= target:
            return s1 if y0 <= y1 else s0 + (s1 - s0) * (y0 - target) / (y0 - y1)
    return float(run.steps[-1])


def verdict_from_row(row: dict[str, Any]) -> PairedVerdict:
    values = {name: row[name] for name in PairedVerdict.__dataclass_fields__}
    for name, unknown in (("low", -math.inf), ("high", math.inf), ("effect", math.nan), ("noise", math.nan)):
        values[name] = unknown if values[name] is None else values[name]
    values |= {name: tuple(values[name]) for name in ("rates", "failures", "warnings")}
    low, high = values["normal"]
    values["normal"] = (-math.inf if low is None else low, math.inf if high is None else high)
    return PairedVerdict(**{**values, "saved": tuple(values["saved"]) if values["saved"] else None})
