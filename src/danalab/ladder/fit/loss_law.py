"""Laws of the final loss, L = E + sum_k A_k x_k^(-alpha_k), with positive coefficients.

saturated    E + A C^-alpha                     x = compute
broken       E + A C^-alpha + B C^-beta         x = compute, twice
chinchilla   E + A N^-alpha + B D^-beta         x = parameters, tokens (Hoffmann et al. 2022)
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from danalab.errors import UserError, nearest
from danalab.ladder.fit.statistics import Interval, scipy

KINDS = {"saturated": 1, "broken": 2, "chinchilla": 2}
"""Terms of each law."""


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
    """Of E, A, alpha, B, beta, over resampled runs; empty without a bootstrap."""
    samples: "tuple[LossLaw, ...]" = field(default=(), repr=False)
    """The laws of the resamples; the i-th ones of laws fitted together form a pair."""
    freedom: float = 1.0
    """Degrees of freedom of the intervals."""

    @property
    def coefficients(self) -> dict[str, float]:
        """E, A, alpha (and B, beta) by name."""
        names = itertools.chain(*(("A", "alpha"), ("B", "beta"))[: len(self.terms)])
        return {"E": self.E, **dict(zip(names, itertools.chain(*self.terms), strict=True))}

    def __call__(self, *x: ArrayLike) -> np.ndarray:
        """Loss at compute C, or at (N, D) for chinchilla."""
        columns = columns_of(self.kind, x)
        return np.asarray(self.E + sum(A * c**-alpha for (A, alpha), c in zip(self.terms, columns, strict=True)))

    def compute_for(self, loss: float) -> float:
        """Compute at which the law is at `loss`; infinite at or below E. For laws of compute."""
        if self.kind == "chinchilla":
            raise UserError("a law of parameters and tokens has no single compute for a loss")
        if loss <= self.E:
            return math.inf
        # The root: between where one term alone makes up the excess over E, and where each makes up a share of it.
        terms = [term for term in self.terms if term[0] > 0]
        low, high = (max(math.log(n * A / (loss - self.E)) / alpha for A, alpha in terms) for n in (1, len(terms)))
        if not -300 < low <= high < 300:  # so that ratios are floats, too
            return math.inf
        if low < high:
            brentq = scipy("scipy.optimize").brentq
            low = brentq(lambda log_c: float(self(math.exp(log_c))) - loss, low - 1e-6, high + 1e-6, xtol=1e-12)
        return math.exp(low)


def columns_of(kind: str, x: Sequence[ArrayLike]) -> list[np.ndarray]:
    """The x of each term."""
    columns = [np.asarray(column, float) for column in x]
    return columns * 2 if kind == "broken" else columns


@dataclass(frozen=True)
class LossPoints:
    """Points of one law."""

    name: str
    columns: list[np.ndarray]
    loss: np.ndarray

    @classmethod
    def of(cls, name: str, kind: str, x: Any, y: ArrayLike) -> "LossPoints":
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
        needed = points_needed(kind)
        if points < needed:
            raise UserError(f"{of}a {kind} law needs runs at {needed} different points, there are {points}")
        if kind == "chinchilla" and _are_proportional(*columns):
            raise UserError(
                f"{of}tokens follow from parameters in all runs, so the two terms of a chinchilla law cannot be told "
                "apart; add runs of the same sizes with other --tokens-per-param"
            )
        return cls(name, columns, loss)

    def resampled(self, rng: np.random.Generator, law: LossLaw, groups: Sequence[Any] | None) -> "LossPoints":
        """Runs drawn with replacement within their groups; without groups, residuals put on the fitted law.

        A group of n is drawn with its deviations widened by sqrt(n/(n-1)), which resampling takes away. A run that is
        alone in its group has no known noise: it gets a residual, as without groups.
        """
        free = max(len(self.loss) - 1 - 2 * KINDS[law.kind], 1)
        noise = rng.choice(law.residuals, len(self.loss)) * math.sqrt(len(self.loss) / free)
        logs = np.log(self.loss)
        drawn = logs + law.residuals - noise
        labels = np.arange(len(self.loss)) if groups is None else np.asarray([str(group) for group in groups])
        for label in np.unique(labels):
            here = np.flatnonzero(labels == label)
            if len(here) > 1:
                mean = logs[here].mean()
                drawn[here] = mean + (rng.choice(logs[here], len(here)) - mean) * math.sqrt(len(here) / (len(here) - 1))
        return LossPoints(self.name, self.columns, np.exp(drawn))


def points_needed(kind: str) -> int:
    """Different points that a law needs: one more than coefficients, as a law through every point has no residuals."""
    return 2 + 2 * KINDS[kind]


def _are_proportional(N: np.ndarray, D: np.ndarray) -> bool:
    """Whether D is a power of N, to 2%."""
    n, d = np.log(N), np.log(D)
    slope, level = np.polyfit(n, d, 1) if np.ptp(n) > 0 else (0.0, d.mean())
    return bool(np.max(np.abs(d - slope * n - level)) < 0.02)
