"""When to stop: an anytime-valid test of paired differences of unknown variance.

Differences x_1, x_2, ... are Gaussian with mean m and standard deviation s, both unknown; n of them have mean xbar and
sample deviation sd. The effect m / s has a Gaussian prior N(0, g), s the scale-invariant prior ds / s. The Bayes factor
against m = m0 then depends on Student's t alone:

    t = sqrt(n) (xbar - m0) / sd          r = 1 / (1 + n g)          v = n - 1
    B_n(m0) = sqrt(r) ((1 + t^2 / v) / (1 + r t^2 / v))^(n / 2)

Under m = m0 it is a nonnegative martingale of mean 1, so P(B_n(m0) >= 1 / alpha at any n) <= alpha (Ville). Hence the
set {m0: B_n(m0) < 1 / alpha} covers m at all n at once with probability 1 - alpha: one may look after each run and
stop for any reason. Sources: the Bayes factor is that of Zellner's and Liang's g-prior for one mean; that it is an
e-process: Perez-Ortiz, Lardy, de Heide & Gruenwald, arXiv 2208.07610; as a confidence sequence: Wang & Ramdas,
arXiv 2310.03722.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

PRIORS = (1.0, 30.0)
"""g: variances of the effect in standard deviations of a paired difference; B_n is the mean of their Bayes factors. The
small one decides effects of 1 to 3 the soonest, the large one effects of 10 after three pairs."""


@dataclass(frozen=True)
class Bounds:
    """A confidence sequence at its n-th look."""

    mean: float
    low: float
    high: float
    n: int


def log_bayes_factor(n: int, ratio: float) -> float:
    """log B_n of t^2 / (n - 1) = ratio, the mean over the priors."""
    logs = [0.5 * n * (math.log1p(ratio) - math.log1p(ratio / (1 + n * g))) - 0.5 * math.log1p(n * g) for g in PRIORS]
    return max(logs) + math.log(fmean(math.exp(each - max(logs)) for each in logs))


def bounds(differences: Sequence[float], alpha: float) -> Bounds:
    """The interval of means whose evidence is below 1 / alpha; unbounded where n is too small to say anything."""
    n = len(differences)
    mean = fmean(differences) if n else 0.0
    least = -math.log(alpha)
    if n < 2 or log_bayes_factor(n, 1e12) < least:
        return Bounds(mean, -math.inf, math.inf, n)
    low, high = -30.0, math.log(1e12)  # of log(t^2 / v), in which the evidence grows
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if log_bayes_factor(n, math.exp(middle)) >= least else (middle, high)
    half = math.sqrt(math.exp(high) * (n - 1) / n) * stdev(differences)
    return Bounds(mean, mean - half, mean + half, n)


def decide(differences: Sequence[float], alpha: float, margin: float) -> str:
    """`better` (the differences, contender minus baseline, are below 0), `worse`, `no difference` (all of the interval
    is within +- margin), or `undecided`."""
    found = bounds(differences, alpha)
    if -margin < found.low and found.high < margin:
        return "no difference"
    if found.high < 0:
        return "better"
    return "worse" if found.low > 0 else "undecided"


FIRST_SHARE = 0.8  # of alpha, for the first look


def spent(alpha: float, look: int) -> float:
    """Error of the look-th question about one comparison with fresh seeds (1, 2, ...); any number sum to below `alpha`.

    alpha_1 = 0.8 alpha, and alpha_k = 0.2 alpha / (k (k - 1)), of which the first K sum to 0.2 alpha (1 - 1 / K).
    """
    return alpha * (FIRST_SHARE if look == 1 else (1 - FIRST_SHARE) / (look * (look - 1)))
