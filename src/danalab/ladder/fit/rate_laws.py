"""The law of the best learning rate, and what another rate costs.

lr = a (b + P)^d, fitted to the best few learning rates of each size.

For a given b the law is a straight line in log lr against log(b + P), which weighted least squares solves exactly; so
only b is searched, on one axis, and the fit has neither starting points nor a step size.

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
from danalab.ladder.fit.statistics import Interval, percentile_interval, student_interval

LEAST_SIZES = 3
"""The number of coefficients; intervals need one more."""


@dataclass(frozen=True)
class LRLaw:
    """lr = a (b + P)^d."""

    a: float
    b: float
    d: float
    intervals: dict[str, Interval]
    """Percentiles of a, b and d over resampled sizes; the three are correlated. Empty without a bootstrap, and for
    three sizes."""
    n_sizes: int
    n_trials: int
    samples: tuple[tuple[float, float, float], ...] = ()
    """(a, b, d) of each resample, for intervals of predictions."""

    def __call__(self, params: ArrayLike) -> np.ndarray:
        """Learning rate at parameter counts (those of the size law that was fitted)."""
        return self.a * (self.b + np.asarray(params, float)) ** self.d

    def interval(self, params: float, level: float = 0.95) -> Interval:
        """Interval of the learning rate at a size; NaN without a bootstrap.

        Student's t on the logarithm with n_sizes - 3 degrees of freedom: percentiles of a few sizes cover the truth
        too rarely.
        """
        logs = [math.log(a) + d * math.log(b + params) for a, b, d in self.samples]
        error = float(np.std(logs)) * math.sqrt(self.n_sizes / (self.n_sizes - 1)) if logs else math.nan
        return student_interval(math.log(float(self(params))), error, max(self.n_sizes - LEAST_SIZES, 1), level).exp()


_Point = tuple[float, float, float]  # parameters, learning rate, weight


def fit_lr_law(
    params: ArrayLike,
    lr: ArrayLike,
    loss: ArrayLike,
    *,
    top: int = 5,
    n_bootstrap: int = 500,
    level: float = 0.95,
    seed: int = 0,
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
        raise UserError(f"three coefficients: trials at {LEAST_SIZES} sizes are needed, there are {len(sizes)}")
    a, b, d = _fit([point for points in sizes for point in points])
    samples: list[tuple[float, float, float]] = []
    rng = np.random.default_rng(seed)
    while len(sizes) > LEAST_SIZES and len(samples) < n_bootstrap:  # resampled, three sizes are the same three
        chosen = rng.integers(len(sizes), size=len(sizes))
        if len(set(chosen.tolist())) >= LEAST_SIZES:  # fewer sizes leave the law undetermined
            samples.append(_fit([point for i in chosen for point in sizes[i]]))
    intervals = {
        name: percentile_interval([sample[i] for sample in samples], level)
        for i, name in enumerate("abd" if samples else "")
    }
    return LRLaw(a, b, d, intervals, len(sizes), sum(map(len, sizes)), tuple(samples))


def _best_trials(params: np.ndarray, lr: np.ndarray, loss: np.ndarray, top: int) -> list[list[_Point]]:
    if not params.shape == lr.shape == loss.shape or params.ndim != 1:
        raise UserError(f"params, lr, loss must have the same length; got {params.shape}, {lr.shape}, {loss.shape}")
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
            sizes.append([(float(size), lr[i], weight) for i, weight in zip(kept, weights, strict=True)])
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
    my = float(w @ y)

    def lines(log_b: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(squared error, log a, d) of the best line for each log b."""
        x = np.log(np.exp(log_b)[:, None] + P)
        mx = x @ w
        away = x - mx[:, None]
        d = (away * (y - my)) @ w / (away**2 @ w)
        return (y - my - d[:, None] * away) ** 2 @ w, my - d * mx, d

    # b from far below the smallest size, where it has no effect, to the largest: beyond it the law is an exponential
    # over the measured sizes, and d has no meaning.
    low, high = math.log(P.min()) - 12, math.log(P.max())
    grid = np.linspace(low, high, 120)
    for _ in range(6):  # closer and closer around the best
        i = int(np.argmin(lines(grid)[0]))
        grid = np.linspace(grid[max(i - 1, 0)], grid[min(i + 1, len(grid) - 1)], 30)
    errors, log_a, d = lines(grid)
    i = int(np.argmin(errors))
    return math.exp(log_a[i]), math.exp(grid[i]), float(d[i])


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


def fit_shared_curvature(trials: Sequence[tuple[ArrayLike, ArrayLike]]) -> SharedCurvature:
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
    return SharedCurvature(k, student_interval(k, error, freedom), n_sizes, len(z), span)


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
        raise UserError(f"within is {within}; it must be positive, a share of the best loss")
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
