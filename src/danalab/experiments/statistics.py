"""Intervals of estimates from few runs.

One way for all: the runs of a ladder are drawn again, each with new noise and with the choice of the learning rate
made again (`danalab.experiments.tuning.Redraw`), and the whole calculation is repeated. The standard deviation of its
results is the standard error; Student's t replaces the normal quantile, as the noise is known from few seeds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from danalab.errors import import_extra


def exp(log: float) -> float:
    """e^log; infinite beyond floats, where math.exp raises."""
    return math.inf if log > 709 else math.exp(log)


@dataclass(frozen=True)
class Interval:
    """A confidence interval."""

    low: float
    high: float
    level: float = 0.95
    """Its nominal coverage."""

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def exp(self) -> "Interval":
        """The interval of a value whose logarithm this one is of."""
        return Interval(exp(self.low), exp(self.high), self.level)


def student_interval(estimate: float, error: float, freedom: float, level: float = 0.95) -> Interval:
    """Estimate plus and minus Student's quantile times the standard error; NaN where the error is NaN."""
    stats = import_extra("scipy.stats", "intervals")
    half = float(stats.t.ppf((1 + level) / 2, freedom)) * error
    return Interval(estimate - half, estimate + half, level)


def interval(
    estimate: float, drawn: Sequence[float] | np.ndarray, freedom: float, level: float = 0.95
) -> Interval:
    """Of an estimate whose redrawn values are `drawn`, with a noise of so many degrees of freedom.

    n values are a noisy estimate of the error too: relative variances of the two, 2 / freedom and 2 / (n - 1), add.
    """
    finite = np.asarray(drawn, float)
    finite = finite[np.isfinite(finite)]
    if len(finite) < 2 or not freedom:
        return Interval(-math.inf, math.inf, level)
    left = 1 / (1 / freedom + 1 / (len(finite) - 1))
    return student_interval(estimate, float(finite.std(ddof=1)), left, level)


def log_interval(value: float, drawn: Sequence[float], freedom: float) -> Interval | None:
    """`interval` on the logarithm of a positive value; None where the noise has no degrees of freedom.

    Where a tenth of the draws or more is infinite, the interval is open: from their 2.5% quantile.
    """
    logs = np.log([each for each in drawn if each > 0])
    if len(logs) < 2 or not freedom:
        return None
    if np.isfinite(logs).sum() <= 0.9 * len(logs) or not math.isfinite(value):
        return Interval(exp(float(np.quantile(logs, 0.025, method="lower"))), math.inf)
    return interval(math.log(value), logs, freedom).exp()
