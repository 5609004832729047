"""Laws of the best learning rate, and of any best setting.

lr = a (b + P)^d, fitted to the best few learning rates of each size.

For a given b the law is a straight line in log lr against log(b + P), which weighted least squares solves exactly; so
only b is searched, on one axis, and the fit has neither starting points nor a step size.

Exponents of the best value of a setting over sizes, horizons and batches:

    log x* = log a + d log P + h log f + b log T        P parameters without embeddings, f horizon, T tokens per step

x* of a rung is the vertex of a parabola in log x through its trials, with one curvature for all rungs; where the
interval of that reaches 0, the best value tried. The law is least squares over rungs. The variance of a rung's log x*
is that of the noise between seeds (trials are drawn again, the vertex is computed again) plus that of the grid,
uniform over a step, or over two where the best value is the outermost one. Where rungs scatter more about the law
than that, their scatter counts. The exponent's error also has half a step over the whole range of the axis.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from danalab.errors import UserError
from danalab.ladder.fit.curvature import fit_shared_curvature
from danalab.ladder.fit.statistics import Interval, percentile_interval, student_interval
from danalab.ladder.fit.tuning import TunedSize, retuned

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


LEAST_RATIO = 1.2
"""An axis that varies by less than this factor, beside what the others determine, does not vary: steps are rounded."""


@dataclass(frozen=True)
class ExponentLaw:
    """x* = a x the product of each axis to its exponent."""

    a: float
    exponents: dict[str, float]
    """Axis -> exponent; axes that did not vary, or that the others determine, are not there."""
    intervals: dict[str, Interval]
    """Empty where no more rungs than coefficients were measured, or most best values lie at the edge of their grid."""
    ranges: dict[str, tuple[float, float]]
    """Axis -> least and largest value measured."""
    n_rungs: int
    n_at_edge: int
    """Rungs whose best value is the outermost one tried."""


def fit_exponents(
    axes: Mapping[str, ArrayLike],
    rungs: Sequence[TunedSize],
    *,
    n_bootstrap: int = 200,
    level: float = 0.95,
    seed: int = 0,
) -> ExponentLaw:
    """Fit the law to tuned rungs; those where one value was tried are left out.

    `axes` names each axis's value on every rung; a rung's `rates` are values of the setting; the noise is drawn
    `n_bootstrap` times. UserError: no axis varies over the rungs where several values were tried.
    """
    kept = [i for i, rung in enumerate(rungs) if len(rung.rates) > 1]
    tuned = [rungs[i] for i in kept]
    table = {name: np.asarray(values, float)[kept] for name, values in axes.items()}
    columns, names = [np.ones(len(tuned))], []
    for name, values in table.items() if tuned else ():
        column, base = np.log(values), np.stack(columns, axis=1)
        if np.ptp(column - base @ np.linalg.lstsq(base, column, rcond=None)[0]) > math.log(LEAST_RATIO):
            columns.append(column)
            names.append(name)
    if not names or len(tuned) < len(columns):
        raise UserError("several values are needed at more sizes, horizons or batches than the law has coefficients")
    design = np.stack(columns, axis=1)
    x = [np.log(rung.rates) for rung in tuned]
    known = _curvature_is_known(tuned)
    solve = np.linalg.pinv(design)
    best = _best_values(x, [np.log(rung.losses)[None] for rung in tuned], known)[:, 0]
    coefficients = solve @ best
    edges = [rung.chosen in (0, len(rung.rates) - 1) for rung in tuned]
    steps = np.array([_grid_step(x[i], rung.chosen) for i, rung in enumerate(tuned)])
    variance = steps**2 / 12
    if (again := retuned(tuned)) is not None and n_bootstrap > 1:
        rng = np.random.default_rng(seed)
        drawn = _best_values(x, [again.trials(i, n_bootstrap, rng) for i in range(len(tuned))], known)
        variance = variance + drawn.var(axis=1, ddof=1)
    freedom, intervals = len(tuned) - len(columns), {}
    if freedom > 0 and 2 * sum(edges) <= len(tuned):
        scatter = float(np.sum((best - design @ coefficients) ** 2)) / freedom
        # Each rung's grid is centred on the best value of the one before: the error of half a step can last.
        lasting = [0.0, *(float(steps.mean()) / 2 / np.ptp(column) for column in columns[1:])]
        variance = variance * max(1.0, scatter / float(variance.mean()))
        errors = np.sqrt(solve**2 @ variance + np.square(lasting) / 3)
        intervals = {
            name: student_interval(float(coefficients[i]), float(errors[i]), freedom, level)
            for i, name in enumerate(names, start=1)
        }
    return ExponentLaw(
        math.exp(coefficients[0]), dict(zip(names, map(float, coefficients[1:]), strict=True)), intervals,
        {name: (float(table[name].min()), float(table[name].max())) for name in names}, len(tuned), sum(edges),
    )  # fmt: skip


def _curvature_is_known(rungs: Sequence[TunedSize]) -> bool:
    try:
        return fit_shared_curvature([(rung.rates, np.log(rung.losses)) for rung in rungs]).is_known
    except UserError:
        return False


def _best_values(x: Sequence[np.ndarray], logs: Sequence[np.ndarray], curved: bool) -> np.ndarray:
    """log x* of each rung and draw, within the values tried; log losses are [draws, values] for each rung.

    `curved` takes the vertices of parabolas of one curvature, a draw's own.
    """
    best = np.stack([each[y.argmin(axis=1)] for each, y in zip(x, logs, strict=True)])
    if not curved:
        return best
    # y = L* + k (x - x*)^2: k is the part of y along x^2 beside a line; the rest is a line of slope -2 k x*.
    bends = [each**2 - np.polyval(np.polyfit(each, each**2, min(1, len(each) - 1)), each) for each in x]
    k = np.sum([y @ bend for y, bend in zip(logs, bends, strict=True)], axis=0) / sum(bend @ bend for bend in bends)
    for i, (each, y) in enumerate(zip(x, logs, strict=True)):
        centred = each - each.mean()
        if len(each) > 2:
            slope = (y - k[:, None] * each**2) @ centred / (centred @ centred)
            vertex = np.clip(-slope / (2 * np.where(k > 0, k, np.nan)), each.min(), each.max())
            best[i] = np.where(k > 0, vertex, best[i])
    return best


def _grid_step(x: np.ndarray, chosen: int) -> float:
    """Width around the chosen value that the grid does not resolve."""
    steps = np.diff(x)
    if chosen in (0, len(steps)):
        return 2 * float(steps[0 if chosen == 0 else -1])
    return float(steps[chosen - 1] + steps[chosen]) / 2
