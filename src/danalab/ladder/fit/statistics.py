"""Intervals of estimates from few runs, by resampling.

A percentile interval of three seeds is far too narrow: resampling n values shrinks the variance by (n-1)/n, and the
variance itself is uncertain. So intervals of small samples take the bootstrap's standard error, correct the shrinking,
and use Student's t instead of the normal quantile.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from danalab.errors import import_extra


def exp(log: float) -> float:
    """e^log; infinite beyond floats, where math.exp raises: damaged rows give any logarithm."""
    return math.inf if log > 709 else math.exp(log)


@dataclass(frozen=True)
class Interval:
    """A confidence interval."""

    low: float
    high: float
    level: float
    """Its nominal coverage, such as 0.95."""

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    @property
    def last_digit(self) -> float:
        """The last digit that the bounds are worth writing with: the second one of the width."""
        width = self.high - self.low
        return 10.0 ** min(math.floor(math.log10(width)) - 1, 0) if 0 < width < math.inf else 0.0

    def excludes(self, value: float) -> bool:
        """Whether it misses a value by its last digit at least: by less, one seed more would say otherwise."""
        return value not in self and min(abs(self.low - value), abs(self.high - value)) >= self.last_digit

    def exp(self) -> "Interval":
        """The interval of a value whose logarithm this one is of."""
        return Interval(exp(self.low), exp(self.high), self.level)


def percentile_interval(samples: Sequence[float] | np.ndarray, level: float = 0.95) -> Interval:
    """The middle `level` of bootstrap samples; those that are not finite are left out."""
    finite = np.asarray(samples, float)
    finite = finite[np.isfinite(finite)]
    low, high = np.quantile(finite, [(1 - level) / 2, (1 + level) / 2]) if finite.size else (math.nan, math.nan)
    return Interval(float(low), float(high), level)


@dataclass(frozen=True)
class Variance:
    """An estimated variance."""

    value: float
    freedom: float
    """Degrees of freedom of the estimate."""

    @classmethod
    def resampled(cls, samples: np.ndarray, freedom: float) -> "Variance":
        """Of bootstrap samples that were drawn with a noise of known degrees of freedom.

        n samples are a noisy estimate too: relative variances of the two, 2/freedom and 2/(n - 1), add.
        """
        return cls(float(np.var(samples, ddof=1)), resampled_freedom(freedom, len(samples)))

    @classmethod
    def from_bootstrap(cls, samples: np.ndarray, n: int) -> "Variance":
        """Of bootstrap samples for which n values were drawn with replacement, which shrinks it by (n - 1)/n."""
        shrunk = cls.resampled(samples, n - 1)
        return cls(shrunk.value * n / (n - 1), shrunk.freedom)


@dataclass(frozen=True)
class SelectionNoise:
    """What the choice of the learning rate adds to the uncertainty of one size."""

    shifts: np.ndarray
    """Of the logarithm of the mean loss; their variance is the one that is added [draws]."""
    freedom: float
    """Degrees of freedom of the noise between seeds, by which it was chosen."""


def resampled_freedom(freedom: float, n_resamples: int) -> float:
    """Degrees of freedom of a standard error by resampling, for a noise that has `freedom` of them."""
    return 1 / (1 / freedom + 1 / (n_resamples - 1))


def sum_interval(estimate: float, parts: Sequence[Variance], level: float = 0.95) -> Interval:
    """Student's interval of an estimate whose variance is the sum of independent parts.

    Source: B. Efron and R. Tibshirani, An Introduction to the Bootstrap, chapter 6; degrees of freedom by Welch.
    """
    total = sum(part.value for part in parts)
    if total == 0:
        return Interval(estimate, estimate, level)
    freedom = total**2 / sum(part.value**2 / part.freedom for part in parts)
    return student_interval(estimate, math.sqrt(total), freedom, level)


def noise_law(x: Sequence[float], variances: Sequence[float], freedom: Sequence[int]) -> tuple[np.ndarray, float]:
    """Variance of the noise at each x, c x^b, by the likelihood of normal samples; and its degrees of freedom.

    Long runs vary less than short ones: one variance for all would be too large for some and too small for others.
    `variances` of samples with `freedom` degrees of freedom each (0: one value, whose variance is not known). They are
    pooled where the x of repeated runs span less than a factor of 4, or are two.
    """
    d, v, t = np.asarray(freedom, float), np.asarray(variances, float), np.log(x)
    pooled = float(d @ v) / d.sum()
    if len(set(t[d > 0])) < 3 or np.ptp(t[d > 0]) < math.log(4) or not pooled:
        return np.full(len(t), pooled), float(d.sum())
    design = np.stack([np.ones_like(t), t - d @ t / d.sum()], axis=1)
    weights, law = np.sqrt(d)[:, None], np.array([math.log(pooled), 0.0])
    for _ in range(50):  # Fisher's scoring: the variance of an estimated variance grows as its square
        error = np.clip(v / np.exp(design @ law) - 1, -1, 3)
        law = law + np.linalg.lstsq(weights * design, weights[:, 0] * error, rcond=None)[0]
    return np.exp(design @ law), float(d.sum()) - 1


def student_interval(estimate: float, error: float, freedom: float, level: float = 0.95) -> Interval:
    """Estimate plus and minus Student's quantile times the standard error; NaN where the error is NaN."""
    half = float(scipy("scipy.stats").t.ppf((1 + level) / 2, freedom)) * error
    return Interval(estimate - half, estimate + half, level)


def log_interval(value: float, drawn: Sequence[float], freedom: int) -> Interval | None:
    """Student's interval on the logarithm of a positive value; None where the noise has no degrees of freedom.

    Where a tenth of the resamples or more is infinite, the interval is open: from their 2.5% quantile.
    """
    logs = np.log([each for each in drawn if each > 0])
    if len(logs) < 2 or not freedom:
        return None
    finite = logs[np.isfinite(logs)]
    if len(finite) <= 0.9 * len(logs) or not math.isfinite(value):
        return Interval(exp(float(np.quantile(logs, 0.025, method="lower"))), math.inf, 0.95)
    error, freedom_left = float(np.std(finite, ddof=1)), resampled_freedom(freedom, len(finite))
    return student_interval(math.log(value), error, freedom_left).exp()


def scipy(module: str) -> Any:
    """Import a module of SciPy."""
    return import_extra(module, "fitting")
