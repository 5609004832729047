"""Laws of the final loss, L = E + sum_k A_k x_k^(-alpha_k), with positive coefficients.

saturated    E + A C^-alpha                     x = compute
broken       E + A C^-alpha + B C^-beta         x = compute, twice
chinchilla   E + A N^-alpha + B D^-beta         x = parameters, tokens (Hoffmann et al. 2022)
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from danalab.errors import UserError
from danalab.ladder.fit.statistics import Interval, scipy

KINDS = {"saturated": 1, "broken": 2, "chinchilla": 2}
"""Terms of each law."""


@dataclass(frozen=True)
class LossLaw:
    """A fitted law."""

    kind: str
    E: float
    """Loss that no compute removes [nats a token]."""
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
        brentq = scipy("scipy.optimize").brentq
        middle = math.log(math.sqrt(self.measured[0][0] * self.measured[0][1]))

        def above(log_c: float) -> float:
            return math.log(float(self(math.exp(log_c))) - self.E) - math.log(loss - self.E)

        reach = 1.0
        while above(middle - reach) < 0 or above(middle + reach) > 0:
            reach *= 2
            if reach > 600:
                return math.inf
        return math.exp(brentq(above, middle - reach, middle + reach, xtol=1e-12))


def columns_of(kind: str, x: Sequence[ArrayLike]) -> list[np.ndarray]:
    """The x of each term."""
    columns = [np.asarray(column, float) for column in x]
    return columns * 2 if kind == "broken" else columns
