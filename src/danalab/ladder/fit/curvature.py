"""Sensitivity to the learning rate: the curvature of the final loss in its logarithm.

L(lr) = L* + k (log lr - log lr*)^2,   so an error of a factor 1 + e costs k log(1 + e)^2

Three or four rates at each of several sizes give one shared k, with a best rate and loss per size
(`fit_shared_curvature`). Without any parabola, the measured points give the learning rates within a share of the best
loss (`fit_tolerance`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from danalab.errors import UserError
from danalab.ladder.fit.statistics import Interval, student_interval

LEAST_SHARED = 3
"""Rates that a size needs to contribute to a shared curvature."""


@dataclass(frozen=True)
class SharedCurvature:
    """One curvature for all sizes of an optimizer."""

    curvature: float
    """k [nats/token per squared e-fold of the learning rate]."""
    interval: Interval
    """Student's, by the scatter around the parabolas."""
    n_sizes: int
    n_rates: int
    span: float
    """Largest ratio of two rates at a size: the parabola is not valid for larger factors."""

    @property
    def is_known(self) -> bool:
        """Whether the interval excludes a curvature of 0."""
        return self.interval.low > 0

    def loss_increase(self, factor: float) -> float:
        """Loss added by a learning rate `factor` times the best one [nats/token]."""
        return self.curvature * math.log(factor) ** 2


def fit_shared_curvature(trials: Sequence[tuple[ArrayLike, ArrayLike]], level: float = 0.95) -> SharedCurvature:
    """Parabolas of one curvature, one best rate and one best loss per size, by least squares.

    `trials`: (learning rates, final losses) of each size; sizes of fewer than three rates are left out.
    """
    bends, bent, n_sizes, freedom, span = [], [], 0, -1, 1.0
    for lr, loss in trials:
        x, y = np.log(np.asarray(lr, float)), np.asarray(loss, float)
        x, y = x[np.isfinite(y)], y[np.isfinite(y)]
        if len(np.unique(x)) < LEAST_SHARED:
            continue
        # Residuals of x^2 and of the losses after a straight line: k is their ratio.
        line = np.stack([np.ones_like(x), x - x.mean()], axis=1)
        project = np.eye(len(x)) - line @ np.linalg.pinv(line)
        bends.append(project @ (x - x.mean()) ** 2)
        bent.append(project @ y)
        n_sizes, freedom, span = n_sizes + 1, freedom + len(x) - 2, max(span, math.exp(float(np.ptp(x))))
    if freedom < 1:
        raise UserError(f"a curvature needs {LEAST_SHARED} learning rates at 2 sizes or more, there are {n_sizes}")
    z, w = np.concatenate(bends), np.concatenate(bent)
    k = float(z @ w / (z @ z))
    if k <= 0:
        raise UserError("the losses have no minimum over these learning rates; add rates beyond the best ones")
    error = math.sqrt(float(np.sum((w - k * z) ** 2)) / freedom / float(z @ z))
    return SharedCurvature(k, student_interval(k, error, freedom, level), n_sizes, len(z), span)


@dataclass(frozen=True)
class Tolerance:
    """The learning rates whose loss is within a share of the best one."""

    within: float
    """Share of the best loss, such as 0.01."""
    best_lr: float
    best_loss: float
    low: float
    high: float
    """Where the loss leaves the share; the outermost rate tried where it doesn't."""
    low_is_open: bool
    high_is_open: bool
    """The interval may extend beyond the rates that were tried."""
    n_rates: int


def fit_tolerance(lr: ArrayLike, loss: ArrayLike, within: float = 0.01) -> Tolerance:
    """Interval of learning rates around the best one whose loss is `within` a share of the best.

    By straight lines between the points on a logarithmic axis; losses that are not finite are out of the interval.
    """
    x, y = np.asarray(lr, float), np.asarray(loss, float)
    if not within > 0:
        raise UserError(f"within {within}: must be positive, a share of the best loss")
    rates = np.unique(x)
    if len(rates) < LEAST_SHARED or not np.any(np.isfinite(y)):
        raise UserError(f"an interval of learning rates needs {LEAST_SHARED} of them, there are {len(rates)}")
    losses = np.array([np.min(np.where(np.isfinite(y[x == rate]), y[x == rate], np.inf)) for rate in rates])
    best = int(np.argmin(losses))
    bound = losses[best] * (1 + within)

    def edge(step: int) -> tuple[float, bool]:
        i = best
        while 0 <= i + step < len(rates) and losses[i + step] <= bound:
            i += step
        if not 0 <= i + step < len(rates):
            return float(rates[i]), True
        if not math.isfinite(losses[i + step]):
            return float(rates[i]), False
        share = (bound - losses[i]) / (losses[i + step] - losses[i])
        return float(np.exp((1 - share) * np.log(rates[i]) + share * np.log(rates[i + step]))), False

    (low, low_open), (high, high_open) = edge(-1), edge(1)
    return Tolerance(within, float(rates[best]), float(losses[best]), low, high, low_open, high_open, len(rates))
