"""Sums of powers over any number of terms, exact at the head and by Euler-Maclaurin in the tail."""

import math

import numpy as np
import numpy.typing as npt

_HEAD = 2000


def _antiderivative(x: np.ndarray, exponent: float) -> np.ndarray:
    return np.log(x) if exponent == 1 else x ** (1 - exponent) / (1 - exponent)


def power_sum_between(exponent: float, first: npt.ArrayLike, last: npt.ArrayLike) -> np.ndarray:
    """sum_{j=first}^{last} j^-exponent for first >= 50 or so (midpoint rule with its first correction)."""
    low, high = np.asarray(first, float) - 0.5, np.asarray(last, float) + 0.5
    integral = _antiderivative(high, exponent) - _antiderivative(low, exponent)
    slope = -exponent * (high ** (-exponent - 1) - low ** (-exponent - 1))
    return integral - slope / 24


def power_sum(exponent: float, n: int) -> float:
    """sum_{j=1}^{n} j^-exponent, for any n up to 1e12 and beyond."""
    head = math.fsum(np.arange(1, min(n, _HEAD) + 1, dtype=float) ** -exponent)
    return head if n <= _HEAD else head + float(power_sum_between(exponent, _HEAD + 1, n))


def log_bins(n: int, exact: int, per_decade: int) -> tuple[np.ndarray, np.ndarray]:
    """First and last index of bins that cover 1..n: one each up to `exact`, then `per_decade` bins a decade."""
    singles = np.arange(1, min(exact, n) + 1)
    if n <= exact:
        return singles, singles
    count = max(1, math.ceil(per_decade * math.log10(n / exact)))
    edges = np.unique(np.round(np.geomspace(exact, n, count + 1)).astype(np.int64))
    return np.concatenate([singles, edges[:-1] + 1]), np.concatenate([singles, edges[1:]])
