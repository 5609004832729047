"""Laws of the final loss, L = E + sum_k A_k x_k^(-alpha_k), with positive coefficients.

    saturated    E + A C^-alpha                     x = compute
    broken       E + A C^-alpha + B C^-beta         x = compute, twice
    chinchilla   E + A N^-alpha + B D^-beta         x = parameters, tokens (Hoffmann et al. 2022)

Huber's loss of log residuals is minimised by scipy, from a grid of starting points. Several optimizers can be fitted
together with one E: it is a property of the model and the data, not of the optimizer.

    theta = (log(E / (least loss - E)), then for each term log a and log alpha)          term = a (x / scale)^-alpha
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from danalab.errors import UserError, import_extra, nearest
from danalab.experiments.statistics import Interval, interval

KINDS = {"saturated": 1, "broken": 2, "chinchilla": 2}
"""Terms of each law."""
LawKind = Literal["saturated", "broken", "chinchilla"]
HUBER = 1e-3
"""Log residual above which a point counts linearly, so that failed runs do not bend the law."""
SHARES = (0.02, 0.3, 0.5, 0.65, 0.8, 0.9, 0.97)
"""E at the starting points, relative to the least loss."""
EXPONENTS = (0.05, 0.15, 0.4, 1.0)
"""Exponents of the second term at the starting points."""


@dataclass(frozen=True)
class LossLaw:
    """A fitted law."""

    kind: str
    E: float
    """Loss that no compute removes [nats/token]."""
    terms: tuple[tuple[float, float], ...]
    """(A, alpha) of each term."""
    measured: tuple[tuple[float, float], ...]
    """Smallest and largest x of each term among the points: beyond it the law is an extrapolation."""
    r2: float
    """Of log losses."""
    residuals: np.ndarray = field(repr=False)
    """log(predicted) - log(measured), a point each."""
    intervals: dict[str, Interval] = field(default_factory=dict)
    """Of E, A, alpha, B, beta, over redrawn runs; empty without a bootstrap."""
    samples: "tuple[LossLaw, ...]" = field(default=(), repr=False)
    """The laws of redrawn runs; the i-th ones of laws fitted together form a pair."""
    freedom: float = 1.0
    """Degrees of freedom of the noise."""

    @property
    def coefficients(self) -> dict[str, float]:
        """E, A, alpha (and B, beta) by name."""
        names = itertools.chain(*(("A", "alpha"), ("B", "beta"))[: len(self.terms)])
        return {"E": self.E, **dict(zip(names, itertools.chain(*self.terms), strict=True))}

    def __call__(self, *x: ArrayLike) -> np.ndarray:
        """Loss at compute C, or at (N, D) for chinchilla."""
        columns = columns_of(self.kind, x)
        return np.asarray(
            self.E + sum(A * c**-alpha for (A, alpha), c in zip(self.terms, columns, strict=True))
        )

    def compute_for(self, loss: float) -> float:
        """Compute at which the law is at `loss`; infinite at or below E. For laws of compute."""
        if self.kind == "chinchilla":
            raise UserError("a law of parameters and tokens has no single compute for a loss")
        if loss <= self.E:
            return math.inf
        # Between where one term alone makes up the excess over E, and where each makes up a share of it.
        terms = [term for term in self.terms if term[0] > 0]
        low, high = (
            max(math.log(n * A / (loss - self.E)) / alpha for A, alpha in terms) for n in (1, len(terms))
        )
        if not -300 < low <= high < 300:  # so that ratios are floats, too
            return math.inf
        if low < high:
            brentq = import_extra("scipy.optimize", "the inverse of a law").brentq
            low = brentq(
                lambda log_c: float(self(math.exp(log_c))) - loss, low - 1e-6, high + 1e-6, xtol=1e-12
            )
        return math.exp(low)


def columns_of(kind: str, x: Sequence[ArrayLike]) -> list[np.ndarray]:
    """The x of each term."""
    columns = [np.asarray(column, float) for column in x]
    return columns * 2 if kind == "broken" else columns


@dataclass(frozen=True)
class LossPoints:
    """Points of one law."""

    columns: list[np.ndarray]
    loss: np.ndarray

    @classmethod
    def of(cls, kind: str, x: Any, y: ArrayLike, name: str = "") -> "LossPoints":
        """The points of a law of this kind; x, y and errors as of `fit_loss_law`."""
        if kind not in KINDS:
            raise UserError(f"--law {kind}{nearest(kind, KINDS)}: known are {', '.join(KINDS)}")
        columns = columns_of(kind, x if kind == "chinchilla" else (x,))
        loss = np.asarray(y, float)
        of = f"{name}: " if name else ""
        if any(column.shape != loss.shape or column.ndim != 1 for column in columns):
            raise UserError(f"{of}x and loss must be lists of the same length")
        if not all(np.all(np.isfinite(column) & (column > 0)) for column in (*columns, loss)):
            raise UserError(f"{of}x and loss must be finite and positive; leave failed runs out")
        points = len({tuple(column[i] for column in columns) for i in range(len(loss))})
        needed = 2 + 2 * KINDS[kind]  # one more than coefficients: a law through every point has no residuals
        if points < needed:
            raise UserError(f"{of}a {kind} law needs runs at {needed} different points, there are {points}")
        if kind == "chinchilla":
            n, d = np.log(columns)
            line = np.polyfit(n, d, 1) if np.ptp(n) > 0 else (0.0, d.mean())
            if np.max(np.abs(d - np.polyval(line, n))) < 0.02:  # D is a power of N
                raise UserError(
                    f"{of}tokens follow from parameters in all runs, so the two terms of a chinchilla law cannot be "
                    "told apart; add runs of the same sizes with other --tokens-per-param"
                )
        return cls(columns, loss)


Draw = Callable[[np.random.Generator, int], np.ndarray]
"""Random generator, n -> log(redrawn loss / loss) of n draws of every run: [n, runs]."""


def fit_loss_law(
    x: ArrayLike | Sequence[ArrayLike],
    loss: ArrayLike,
    kind: str = "saturated",
    *,
    n_bootstrap: int = 200,
    level: float = 0.95,
    seed: int = 0,
) -> LossLaw:
    """Fit one law.

    Args:
        x: compute of each run; for chinchilla the pair (parameters, tokens). Runs of equal x are repeats.
        loss: final loss of each run [nats/token].
        kind: saturated, broken or chinchilla.
        n_bootstrap: redrawn sets of losses for the intervals, by the scatter around the law; 0: none.
    Raises:
        UserError: another kind, too few points (has the number needed), or values out of range.
    """
    return fit_joint_laws({"": (x, loss)}, kind, n_bootstrap=n_bootstrap, level=level, seed=seed)[""]


def fit_joint_laws(
    curves: Mapping[str, tuple[Any, ArrayLike]],
    kind: str = "saturated",
    *,
    draws: Mapping[str, tuple[Draw, float]] | None = None,
    n_bootstrap: int = 200,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, LossLaw]:
    """Fit a law to each optimizer's runs, all with one E.

    Args:
        curves: optimizer -> (x, loss), as `fit_loss_law` takes them.
        draws: optimizer -> how its losses are drawn again, and the degrees of freedom of that noise; those without are
            drawn by the scatter around their law.
    Raises:
        UserError: as `fit_loss_law`.
    """
    data = [LossPoints.of(kind, x, y, name) for name, (x, y) in curves.items()]
    fitted = _best_laws(data, kind)
    scatter = [
        _scatter(law, max(len(law.residuals) - 1 - 2 * KINDS[kind], 1)) if draws is None else draws[name]
        for name, law in zip(curves, fitted, strict=True)
    ]
    rng = np.random.default_rng(seed)
    redrawn = [
        each.loss * np.exp(draw(rng, n_bootstrap)) for each, (draw, _) in zip(data, scatter, strict=True)
    ]
    samples = []
    for i in range(n_bootstrap):
        drawn = [LossPoints(each.columns, losses[i]) for each, losses in zip(data, redrawn, strict=True)]
        samples.append(_best_laws(drawn, kind, start=fitted))
    freedom = sum(each for _, each in scatter)
    laws = {}
    for i, (name, law) in enumerate(zip(curves, fitted, strict=True)):
        own = tuple(sample[i] for sample in samples)
        intervals = {
            key: _interval(key, value, [sample.coefficients[key] for sample in own], freedom, level)
            for key, value in (law.coefficients.items() if len(own) > 1 else ())
        }
        laws[name] = replace(law, intervals=intervals, samples=own, freedom=freedom)
    return laws


def _scatter(law: LossLaw, freedom: int) -> tuple[Draw, float]:
    """Residuals drawn again on the fitted law."""
    widened = law.residuals * math.sqrt(len(law.residuals) / freedom)
    return lambda rng, n: law.residuals - rng.choice(widened, (n, len(widened))), freedom


def _interval(name: str, value: float, drawn: Sequence[float], freedom: float, level: float) -> Interval:
    """On the logarithm for amplitudes and exponents, which are positive and may span decades. E is at least 0."""
    if name == "E":
        around = interval(value, drawn, freedom, level)
        return Interval(max(around.low, 0.0), around.high, level)
    logs = np.clip(np.log(np.maximum([value, *drawn], 1e-300)), -690, 690)
    return interval(float(logs[0]), logs[1:], freedom, level).exp()


def _best_laws(
    data: Sequence[LossPoints], kind: str, start: Sequence[LossLaw] | None = None
) -> list[LossLaw]:
    """The best laws with one E for all, from near ones, or else from a grid of starting points."""
    floor = min(float(each.loss.min()) for each in data)
    # Scaled to a geometric mean of 1, amplitudes and exponents hardly depend on each other.
    scales = [np.array([np.exp(np.mean(np.log(column))) for column in each.columns]) for each in data]
    logs = [np.log(np.stack(each.columns, 1) / scale) for each, scale in zip(data, scales, strict=True)]
    x, y = (
        np.concatenate(logs),
        np.log(np.concatenate([each.loss for each in data])),
    )  # [points, terms], [points]
    which = np.repeat(np.arange(len(data)), [len(each.loss) for each in data])

    def unpack(theta: np.ndarray) -> tuple[float, np.ndarray]:
        """E, between 0 and the least loss, and for each law its terms' (log amplitude, log exponent)."""
        return floor / (1 + math.exp(-min(max(theta[0], -500), 500))), theta[1:].reshape(len(data), -1, 2)

    def parts(theta: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """E, and the terms and exponents of each point: [points, terms]."""
        E, terms = unpack(theta)
        alphas = np.exp(np.minimum(terms[which, :, 1], 50))
        return E, np.exp(np.minimum(terms[which, :, 0] - alphas * x, 300)), alphas

    def residuals(theta: np.ndarray) -> np.ndarray:
        E, terms, _ = parts(theta)
        return np.log(E + terms.sum(axis=1)) - y

    def jacobian(theta: np.ndarray) -> np.ndarray:
        E, terms, alphas = parts(theta)
        slopes = np.stack([terms, -terms * alphas * x], axis=2)  # by log amplitude, by log exponent
        own = (which[:, None] == np.arange(len(data)))[:, :, None, None] * slopes[:, None]
        floors = np.full((len(y), 1), E * (1 - E / floor))
        return np.hstack([floors, own.reshape(len(y), -1)]) / (E + terms.sum(axis=1))[:, None]

    starts = _starts(data, logs, floor, kind) if start is None else [_theta(start, floor, scales)]
    least_squares = import_extra("scipy.optimize", "laws of the loss").least_squares
    how: Any = {"loss": "huber", "f_scale": HUBER}
    if len(starts) > 1:  # a hundred evaluations tell which starts are worth more
        fits = [least_squares(residuals, theta, jacobian, max_nfev=100, **how) for theta in starts]
        starts = [fit.x for fit in sorted(fits, key=lambda fit: fit.cost)[:3]]
    fits = [least_squares(residuals, theta, jacobian, max_nfev=500, **how) for theta in starts]
    best = min(fits, key=lambda fit: fit.cost).x
    E, terms = unpack(best)
    errors = residuals(best)
    laws = []
    for i, each in enumerate(data):
        alphas = np.exp(terms[i, :, 1])
        fitted = list(
            zip((np.exp(terms[i, :, 0]) * scales[i] ** alphas).tolist(), alphas.tolist(), strict=True)
        )
        if kind == "broken":
            fitted.sort(key=lambda term: -term[1])  # terms are ordered by exponent
        own, spread = errors[which == i], float(np.var(np.log(each.loss)))
        r2 = 1 - float(np.mean(own**2)) / spread if spread else math.nan
        measured = tuple((float(column.min()), float(column.max())) for column in each.columns)
        laws.append(LossLaw(kind, E, tuple(fitted), measured, r2, own))
    return laws


def _starts(
    data: Sequence[LossPoints], logs: Sequence[np.ndarray], floor: float, kind: str
) -> list[np.ndarray]:
    """For each of some E, straight lines through the logarithm of the excess; a second term with some exponents."""
    starts = []
    for share, second in itertools.product(SHARES, EXPONENTS if KINDS[kind] == 2 else (0.0,)):
        theta = [math.log(share / (1 - share))]
        for each, xs in zip(data, logs, strict=True):
            excess = np.log(each.loss - 0.999 * share * floor)
            slope, level = np.polyfit(xs[:, 0], excess, 1)
            theta += [float(level), math.log(max(-slope, 0.02))]
            if second:
                theta[-2] -= math.log(2)
                theta += [float(level) - math.log(2), math.log(second)]
        starts.append(np.array(theta))
    return starts


def _theta(laws: Sequence[LossLaw], floor: float, scales: Sequence[np.ndarray]) -> np.ndarray:
    """theta of these laws."""
    share = min(max(laws[0].E / floor, 1e-6), 1 - 1e-6)
    theta = [math.log(share / (1 - share))]
    for law, own in zip(laws, scales, strict=True):
        for (A, alpha), scale in zip(law.terms, own, strict=True):
            theta += [math.log(max(A, 1e-300)) - alpha * math.log(scale), math.log(alpha)]
    return np.array(theta)
