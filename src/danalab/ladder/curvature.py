"""How much a wrong learning rate costs: the curvature of the final loss in the logarithm of the learning rate.

L(lr) = L* + k (log lr - log lr*)^2,   so an error of a factor 1 + e costs k log(1 + e)^2
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from danalab.errors import UserError

LEAST_RATES = 5


@dataclass(frozen=True)
class Curvature:
    """A parabola through the losses around the best learning rate."""

    curvature: float
    """k [nats a token per squared e-fold of the learning rate]."""
    best_lr: float
    best_loss: float
    n_rates: int

    def loss_increase(self, factor: float) -> float:
        """Loss added by a learning rate `factor` times the best one [nats a token]."""
        return self.curvature * math.log(factor) ** 2


def fit_curvature(lr: ArrayLike, loss: ArrayLike) -> Curvature:
    """Fit the parabola; where all rates together bend the wrong way, those nearest to the best one are tried.

    Args:
        lr, loss: 1-D, of equal length; losses that are not finite are left out.
    Raises:
        UserError: fewer than five learning rates, or losses that have no minimum in them.
    """
    x, y = np.log(np.asarray(lr, float)), np.asarray(loss, float)
    keep = np.isfinite(x) & np.isfinite(y)
    x, y = x[keep], y[keep]
    if len(np.unique(x)) < LEAST_RATES:
        raise UserError(f"curvature needs {LEAST_RATES} learning rates, there are {len(np.unique(x))}")
    nearest = np.argsort(np.abs(x - x[np.argmin(y)]), kind="stable")
    for count in (len(x), LEAST_RATES):
        chosen = nearest[:count]
        k, slope, level = np.polyfit(x[chosen], y[chosen], 2)
        if k > 0:
            centre = -slope / (2 * k)
            return Curvature(float(k), math.exp(centre), float(level - slope**2 / (4 * k)), count)
    raise UserError("the losses have no minimum over these learning rates; add rates beyond the best one")
