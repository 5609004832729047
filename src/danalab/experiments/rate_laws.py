"""The law of the best learning rate, and what another rate costs.

    lr = a (b + P)^d                            fitted to the best few learning rates of each size
    L(lr) = L* + k (log lr - log lr*)^2         an error of a factor 1 + e costs k log(1 + e)^2

For a given b the first law is a straight line in log lr against log(b + P), which weighted least squares solves
exactly; so only b is searched, on one axis. Three or four rates at each of several sizes give one shared k.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from danalab.errors import UserError, import_extra

LEAST_SIZES = 3
"""The number of coefficients; intervals need one more."""
LEAST_SHARED = 3
"""Rates that a size needs to contribute to a shared curvature."""


@dataclass(frozen=True)
class LRLaw:
    """lr = a (b + P)^d."""

    a: float
    b: float
    d: float
    n_sizes: int
    n_trials: int
    samples: tuple[tuple[float, float, float], ...] = ()
    """(a, b, d) over resampled sizes; none without a bootstrap, and for three sizes."""

    def __call__(self, params: ArrayLike) -> np.ndarray:
        """Learning rate at parameter counts (those of the size law that was fitted)."""
        return self.a * (self.b + np.asarray(params, float)) ** self.d


_Point = tuple[float, float, float]  # parameters, learning rate, weight


def fit_lr_law(
    params: ArrayLike, lr: ArrayLike, loss: ArrayLike, *, top: int = 5, n_bootstrap: int = 200, seed: int = 0
) -> LRLaw:
    """Fit the law to trials: a parameter count, a learning rate and a final loss each.

    At each size the `top` trials of least loss count, with weights top, top - 1, ..., 1; learning rates within 5% of a
    better one are the same trial. All sizes weigh alike (the published fit weighs them by P, so that on a ladder of
    three decades the largest alone decides).

    Args:
        params, lr, loss: 1-D, of equal length; losses that are not finite are left out.
        n_bootstrap: resamples of sizes for the intervals, which need four sizes or more; 0: none.
    Raises:
        UserError: fewer than three sizes, or values out of range.
    Source: arXiv 2602.05298, appendix on learning rates.
    """
    sizes = _best_trials(np.asarray(params, float), np.asarray(lr, float), np.asarray(loss, float), top)
    if len(sizes) < LEAST_SIZES:
        raise UserError(
            f"three coefficients: trials at {LEAST_SIZES} sizes are needed, there are {len(sizes)}"
        )
    law = _fit([point for points in sizes for point in points])
    samples: list[tuple[float, float, float]] = []
    rng = np.random.default_rng(seed)
    while (
        len(sizes) > LEAST_SIZES and len(samples) < n_bootstrap
    ):  # resampled, three sizes are the same three
        chosen = rng.integers(len(sizes), size=len(sizes))
        if len(set(chosen.tolist())) >= LEAST_SIZES:  # fewer sizes leave the law undetermined
            samples.append(_fit([point for i in chosen for point in sizes[i]]))
    return LRLaw(*law, len(sizes), sum(map(len, sizes)), tuple(samples))


def _best_trials(params: np.ndarray, lr: np.ndarray, loss: np.ndarray, top: int) -> list[list[_Point]]:
    if not params.shape == lr.shape == loss.shape or params.ndim != 1:
        raise UserError(
            f"params, lr, loss must have the same length; got {params.shape}, {lr.shape}, {loss.shape}"
        )
    if not (np.all(params > 0) and np.all(lr > 0)):
        raise UserError("parameter counts and learning rates must be positive")
    sizes = []
    for size in np.unique(params):
        here = np.flatnonzero((params == size) & np.isfinite(loss))
        kept: list[int] = []
        for i in here[np.argsort(loss[here], kind="stable")]:
            if len(kept) < top and all(abs(math.log(lr[i] / lr[j])) > math.log(1.05) for j in kept):
                kept.append(int(i))
        if kept:
            weights = _rank_weights(loss[kept], top)
            sizes.append(
                [(float(size), float(lr[i]), weight) for i, weight in zip(kept, weights, strict=True)]
            )
    return sizes


def _rank_weights(losses: np.ndarray, top: int) -> np.ndarray:
    """top, top - 1, ... in the order of losses; equal losses share their weights, or order would decide."""
    weights = np.arange(top, top - len(losses), -1, dtype=float)
    for loss in np.unique(losses):
        tied = np.isclose(losses, loss, rtol=1e-9)
        weights[tied] = weights[tied].mean()
    return weights


def _fit(points: Sequence[_Point]) -> tuple[float, float, float]:
    P, lr, weights = np.array(points).T
    y, w = np.log(lr), weights / weights.sum()

    def line(log_b: Any) -> tuple[Any, Any, Any]:
        """(squared error, log a, d) of the best line at each b; a number, or an array."""
        x = np.log(np.exp(log_b)[..., None] + P)
        away, rest = x - (x @ w)[..., None], y - w @ y
        d = (away @ (w * rest)) / (away**2 @ w)
        return (rest - d[..., None] * away) ** 2 @ w, w @ y - d * (x @ w), d

    # b from far below the smallest size, where it has no effect, to the largest: beyond it the law is an exponential
    # over the measured sizes, and d has no meaning.
    grid = np.linspace(math.log(P.min()) - 12, math.log(P.max()), 120)
    i = int(np.argmin(line(grid)[0]))
    bounds = (grid[max(i - 1, 0)], grid[min(i + 1, len(grid) - 1)])
    optimize = import_extra("scipy.optimize", "the law of the learning rate")
    log_b = np.float64(
        optimize.minimize_scalar(lambda t: float(line(t)[0]), bounds=bounds, method="bounded").x
    )
    _, log_a, d = line(log_b)
    return math.exp(log_a), math.exp(log_b), float(d)


def shared_curvature(trials: Sequence[tuple[np.ndarray, np.ndarray]]) -> float:
    """The curvature of parabolas with one best rate and one best loss per size, by least squares.

    `trials`: (log learning rates, losses) of each size; sizes of fewer than three rates are left out.
    """
    bends, bent, freedom = [], [], -1
    for x, y in trials:
        if len(np.unique(x)) < LEAST_SHARED:
            continue
        # Residuals of x^2 and of the losses after a straight line: k is their ratio.
        line = np.stack([np.ones_like(x), x - x.mean()], axis=1)
        project = np.eye(len(x)) - line @ np.linalg.pinv(line)
        bends.append(project @ (x - x.mean()) ** 2)
        bent.append(project @ y)
        freedom += len(x) - 2
    if freedom < 1:
        raise UserError(
            f"a curvature needs {LEAST_SHARED} learning rates at 2 sizes or more, not {len(bends)}"
        )
    z, w = np.concatenate(bends), np.concatenate(bent)
    k = float(z @ w / (z @ z))
    if k <= 0:
        raise UserError(
            "the losses have no minimum over these learning rates; add rates beyond the best ones"
        )
    return k
