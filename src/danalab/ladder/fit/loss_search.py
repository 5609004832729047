"""The laws of the final loss that fit points best: Huber's loss of log residuals is minimised, with one E for all laws.

    theta = (log(E / (least loss - E)), then for each term log a and log alpha)          term = a (x / scale)^-alpha

For given exponents a law is linear in everything else, so that starting points come from non-negative least squares on
a grid of exponents: no initial guess is needed.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from danalab.ladder.fit.loss_law import KINDS, LossLaw
from danalab.ladder.fit.loss_points import LossPoints
from danalab.ladder.fit.statistics import scipy

HUBER = 1e-3
"""Log residual above which a point counts linearly, so that failed runs do not bend the law."""

EXPONENTS = np.geomspace(0.02, 1.5, 14)

SHARES = (0.02, 0.3, 0.5, 0.65, 0.8, 0.9, 0.97)
"""E at the starting points, relative to the least loss."""

STARTS = 4


def best_laws(
    data: Sequence[LossPoints], kind: str, start: Sequence[LossLaw] | None = None, held: float | None = None
) -> list[LossLaw]:
    """The best laws, with one E for all.

    Args:
        start: laws near the best ones; None: `STARTS` starting points.
        held: the value that E has; None: the best.
    """
    problem = _Problem(data, kind, held)
    if start is not None and held is not None:
        start = _moved(start, held)
    starts = _starts(problem) if start is None else [problem.theta_of(start)]
    search = scipy("scipy.optimize").least_squares
    best = min(
        (
            search(problem.residuals, theta, jac=problem.jacobian, loss="huber", f_scale=HUBER, max_nfev=2000)
            for theta in starts
        ),
        key=lambda found: found.cost,
    )
    return problem.laws(best.x)


class _Problem:
    """Log residuals of some laws as a function of theta, and theta of laws."""

    def __init__(self, data: Sequence[LossPoints], kind: str, held: float | None):
        self.data, self.kind, self.held = data, kind, held
        self.floor = min(float(each.loss.min()) for each in data)
        # Scaled to a geometric mean of 1, amplitudes and exponents hardly depend on each other.
        self.scales = [[float(np.exp(np.mean(np.log(column)))) for column in each.columns] for each in data]
        self.logs = [
            [np.log(column / scale) for column, scale in zip(each.columns, own, strict=True)]
            for each, own in zip(data, self.scales, strict=True)
        ]
        self._targets = [np.log(each.loss) for each in data]

    def residuals(self, theta: np.ndarray) -> np.ndarray:
        """log(predicted) - log(measured) of all points."""
        E, terms = self._unpack(theta)
        predicted = [np.log(E + sum(_parts(own, xs))) for own, xs in zip(terms, self.logs, strict=True)]
        return np.concatenate([ours - y for ours, y in zip(predicted, self._targets, strict=True)])

    def jacobian(self, theta: np.ndarray) -> np.ndarray:
        """Derivatives of the residuals [points, len(theta)]."""
        E, terms = self._unpack(theta)
        J = np.zeros((sum(len(y) for y in self._targets), len(theta)))
        row = 0
        for i, (own, xs) in enumerate(zip(terms, self.logs, strict=True)):
            parts = _parts(own, xs)
            predicted = E + sum(parts)
            rows = slice(row, row + len(xs[0]))
            row = rows.stop
            J[rows, 0] = E * (1 - E / self.floor) / predicted if self.held is None else 0.0
            for k, (part, x) in enumerate(zip(parts, xs, strict=True)):
                at = 1 + 2 * (i * len(own) + k)
                J[rows, at] = part / predicted
                J[rows, at + 1] = -part * x * math.exp(own[k][1]) / predicted
        return J

    def theta_of(self, laws: Sequence[LossLaw]) -> np.ndarray:
        """theta of these laws."""
        share = min(max(laws[0].E / self.floor, 1e-6), 1 - 1e-6)
        own = [
            (math.log(max(A, 1e-300)) - alpha * math.log(scale), math.log(alpha))
            for law, scales in zip(laws, self.scales, strict=True)
            for (A, alpha), scale in zip(law.terms, scales, strict=True)
        ]
        return np.array([math.log(share / (1 - share)), *itertools.chain(*own)])

    def laws(self, theta: np.ndarray) -> list[LossLaw]:
        """The laws at theta."""
        E, terms = self._unpack(theta)
        lengths = np.cumsum([len(each.loss) for each in self.data])
        errors = np.split(self.residuals(theta), lengths[:-1])
        found = []
        for each, own, scales, mine in zip(self.data, terms, self.scales, errors, strict=True):
            fitted = [(math.exp(log_a), math.exp(log_alpha)) for log_a, log_alpha in own]
            back = [(a * scale**alpha, alpha) for (a, alpha), scale in zip(fitted, scales, strict=True)]
            if self.kind == "broken":
                back.sort(key=lambda term: -term[1])  # terms are ordered by exponent
            spread = float(np.var(np.log(each.loss)))
            measured = tuple((float(column.min()), float(column.max())) for column in each.columns)
            r2 = 1 - float(np.mean(mine**2)) / spread if spread else math.nan
            found.append(LossLaw(self.kind, E, tuple(back), measured, r2, mine))
        return found

    def _unpack(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """E (between 0 and the least loss), and for each law its terms' (log amplitude, log exponent)."""
        E = self.floor / (1 + math.exp(-min(max(theta[0], -500), 500))) if self.held is None else self.held
        return E, theta[1:].reshape(len(self.data), KINDS[self.kind], 2)


def _parts(own: np.ndarray, xs: list[np.ndarray]) -> list[np.ndarray]:
    """The terms of a law at its points."""
    powers = (log_a - math.exp(min(log_alpha, 50)) * x for (log_a, log_alpha), x in zip(own, xs, strict=True))
    return [np.exp(np.minimum(power, 300)) for power in powers]


def _moved(laws: Sequence[LossLaw], E: float) -> list[LossLaw]:
    """The laws with another E, which their first terms make up for."""
    away = E - laws[0].E
    return [
        replace(law, E=E, terms=((max(A - away, 0.05 * A), alpha), *others))
        for law in laws
        for (A, alpha), *others in [law.terms]
    ]


def _starts(problem: _Problem) -> list[np.ndarray]:
    """Starting points: for each of some E, every law's best exponents on the grid."""
    nnls = scipy("scipy.optimize").nnls
    floor, kind = problem.floor, problem.kind
    grid = list(
        itertools.combinations(EXPONENTS, 2) if kind == "broken" else itertools.product(EXPONENTS, repeat=KINDS[kind])
    )
    candidates = []
    for share in SHARES:
        theta, total = [math.log(share / (1 - share))], 0.0
        for each, xs in zip(problem.data, problem.logs, strict=True):
            weight = 1 / each.loss  # a relative error of the loss is an error of its logarithm
            best: tuple[float, Any, Any] = (math.inf, None, None)
            for alphas in grid:
                matrix = np.stack([np.exp(-alpha * x) for alpha, x in zip(alphas, xs, strict=True)], axis=1)
                amplitudes, error = nnls(matrix * weight[:, None], (each.loss - share * floor) * weight)
                best = min(best, (error, amplitudes, alphas), key=lambda found: found[0])
            total += best[0] ** 2
            for amplitude, alpha in zip(best[1], best[2], strict=True):
                theta += [math.log(max(amplitude, 1e-6 * floor)), math.log(alpha)]
        candidates.append((total, np.array(theta)))
    candidates.sort(key=lambda candidate: candidate[0])
    return [theta for _, theta in candidates[:STARTS]]
