"""The cost at which a validation curve first falls to a loss."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from danalab.errors import UserError

Curve = tuple[np.ndarray, np.ndarray]
"""(cost, loss), ascending in cost."""


def curve_arrays(cost: ArrayLike, loss: ArrayLike, what: str = "curve") -> tuple[np.ndarray, np.ndarray]:
    """A curve as two float64 arrays in the order of cost."""
    x, y = np.asarray(cost, float), np.asarray(loss, float)
    if x.ndim != 1 or x.shape != y.shape or not x.size:
        raise UserError(
            f"{what}: compute and loss must be lists of the same length, at least 1; got {x.shape}, {y.shape}"
        )
    if not np.all(np.isfinite(x) & (x > 0)):
        raise UserError(f"{what}: compute must be finite and positive")
    if np.any(np.isnan(y)):
        raise UserError(f"{what}: a loss is NaN; leave such runs out")
    order = np.argsort(x, kind="stable")
    return x[order], y[order]


def cost_to_reach(cost: ArrayLike, loss: ArrayLike, target: float) -> float | None:
    """The cost at which a curve first falls to `target`, or None where it never does.

    Between two points the loss is taken to be linear in the logarithm of the cost. A first point that is already below
    is the result; the crossing lies before it.
    """
    return first_crossing(*curve_arrays(cost, loss), target)


def first_crossing(x: np.ndarray, y: np.ndarray, target: float) -> float | None:
    """`cost_to_reach` for arrays of `curve_arrays`: the bootstrap calls it thousands of times."""
    below = y <= target
    i = int(below.argmax())
    if not below[i]:
        return None
    if i == 0 or y[i] == target or not math.isfinite(y[i - 1]):
        return float(x[i])
    share = (y[i - 1] - target) / (y[i - 1] - y[i])
    return math.exp((1 - share) * math.log(x[i - 1]) + share * math.log(x[i]))


def on_one_grid(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """(compute [points], losses [runs, points]): the evaluations of the first curve as far as all curves go.

    A curve that was evaluated at other places is interpolated linearly in the logarithm of compute.
    """
    x = curves[0][0]
    # Equal up to rounding.
    low, high = max(other[0] for other, _ in curves) * (1 - 1e-6), min(other[-1] for other, _ in curves) * (1 + 1e-6)
    x = x[(x >= low) & (x <= high)]
    if not x.size:
        raise UserError("runs that differ in their seeds were evaluated over ranges of compute with nothing in common")
    return x, np.array([np.interp(np.log(x), np.log(other), y) for other, y in curves])
