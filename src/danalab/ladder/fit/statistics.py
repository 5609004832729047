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

from danalab.errors import MissingExtra


@dataclass(frozen=True)
class Interval:
    """A confidence interval."""

    low: float
    high: float
    level: float
    """Its nominal coverage, such as 0.95."""

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


def percentile_interval(samples: Sequence[float] | np.ndarray, level: float = 0.95) -> Interval:
    """The middle `level` of bootstrap samples; those that are not finite are left out."""
    finite = np.asarray(samples, float)
    finite = finite[np.isfinite(finite)]
    low, high = np.quantile(finite, [(1 - level) / 2, (1 + level) / 2]) if finite.size else (math.nan, math.nan)
    return Interval(float(low), float(high), level)


def small_sample_interval(
    estimate: float, samples: Sequence[np.ndarray], sizes: Sequence[int], level: float = 0.95
) -> Interval:
    """Interval of an estimate from independent groups of few values each.

    Args:
        samples: for each group the bootstrap samples of the estimate when that group alone is resampled.
        sizes: number of values in each group, at least 2.
    Source: B. Efron and R. Tibshirani, An Introduction to the Bootstrap, chapter 6; degrees of freedom by Welch.
    """
    variances = [float(np.var(draws)) * n / (n - 1) for draws, n in zip(samples, sizes, strict=True)]
    total = sum(variances)
    if total == 0:
        return Interval(estimate, estimate, level)
    freedom = total**2 / sum(v**2 / (n - 1) for v, n in zip(variances, sizes, strict=True))
    return student_interval(estimate, math.sqrt(total), freedom, level)


def student_interval(estimate: float, error: float, freedom: float, level: float = 0.95) -> Interval:
    """Estimate plus and minus Student's quantile times the standard error; NaN where the error is NaN."""
    half = float(scipy("scipy.stats").t.ppf((1 + level) / 2, freedom)) * error
    return Interval(estimate - half, estimate + half, level)


def scipy(module: str) -> Any:
    """Import a module of SciPy."""
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtra("scipy", "ladder", "fitting") from error
