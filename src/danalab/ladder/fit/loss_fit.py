"""Fits of the laws of the final loss (`danalab.ladder.fit.loss_law`), with intervals over resampled runs.

Huber's loss of log residuals is minimised. Several optimizers can be fitted together with one E: it is a property of
the model and the data, not of the optimizer.

    theta = (log(E / (least loss - E)), then for each term log a and log alpha)          term = a (x / scale)^-alpha

For given exponents a law is linear in everything else, so that starting points come from non-negative least squares on
a grid of exponents: no initial guess is needed. Where sizes span little, A N^-alpha with a small exponent takes the
place of E, and every E fits about as well. Resamples stay near the first fit and do not show that; holding E and
fitting the rest does (`profile_interval`).
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from danalab.ladder.fit.loss_law import KINDS, LossLaw, LossPoints
from danalab.ladder.fit.statistics import Interval, resampled_freedom, scipy, student_interval
from danalab.ladder.fit.tuning import Resampler

HUBER = 1e-3
"""Log residual above which a point counts linearly, so that failed runs do not bend the law."""
EXPONENTS = np.geomspace(0.02, 1.5, 14)
SHARES = (0.02, 0.3, 0.5, 0.65, 0.8, 0.9, 0.97)
"""E at the starting points, relative to the least loss."""
STARTS = 4
_STEPS = 12
_HALVINGS = 5
_NOTHING = 1e-4  # part of the least loss that is too short a way for more than one step
Laws = list[LossLaw]


def fit_loss_law(
    x: ArrayLike | Sequence[ArrayLike],
    loss: ArrayLike,
    kind: str = "saturated",
    *,
    groups: Sequence[Any] | None = None,
    n_bootstrap: int = 200,
    level: float = 0.95,
    seed: int = 0,
) -> LossLaw:
    """Fit one law.

    Args:
        x: compute of each run; for chinchilla the pair (parameters, tokens).
        loss: final loss of each run [nats/token].
        kind: saturated, broken or chinchilla.
        groups: label of each run; the losses of one label (a size) are resampled among themselves. None: residuals
            are resampled.
        n_bootstrap: resamples for the intervals; 0: none.
    Raises:
        UserError: another kind, too few points (has the number needed), or values out of range.
    """
    return fit_joint_laws({"": (x, loss)}, kind, groups=None if groups is None else {"": groups},
                          n_bootstrap=n_bootstrap, level=level, seed=seed)[""]  # fmt: skip


def fit_joint_laws(
    curves: Mapping[str, tuple[ArrayLike | Sequence[ArrayLike], ArrayLike]],
    kind: str = "saturated",
    *,
    groups: Mapping[str, Sequence[Any]] | None = None,
    resamplers: Mapping[str, Resampler] | None = None,
    n_bootstrap: int = 200,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, LossLaw]:
    """Fit a law to each optimizer's runs, all with one E.

    Args:
        curves: optimizer -> (x, loss), as `fit_loss_law` takes them.
        groups: optimizer -> label of each run.
        resamplers: optimizer -> how its losses are drawn, in place of `groups`; see `danalab.ladder.fit.tuning`.
    Raises:
        UserError: as `fit_loss_law`.
    """
    resamplers = resamplers or {}
    data = [LossPoints.of(name, kind, x, y) for name, (x, y) in curves.items()]
    fitted = best_laws(data, kind)
    rng = np.random.default_rng(seed)
    samples: list[list[LossLaw]] = []
    for _ in range(n_bootstrap):
        drawn = [
            LossPoints(each.name, each.columns, resamplers[each.name](rng))
            if each.name in resamplers
            else each.resampled(rng, law, None if groups is None else groups[each.name])
            for each, law in zip(data, fitted, strict=True)
        ]
        samples.append(best_laws(drawn, kind, start=fitted))
    freedom = max(sum(len(each.loss) for each in data) - 1 - 2 * KINDS[kind] * len(data), 1)
    if groups is not None:  # the noise is known from seeds alone
        repeats = sum(len(labels) - len(set(map(str, labels))) for labels in map(groups.__getitem__, curves))
        freedom = min(freedom, repeats) if repeats else freedom
    if n_bootstrap > 1:
        freedom = resampled_freedom(freedom, n_bootstrap)
    likely = None
    if kind == "chinchilla" and n_bootstrap > 1:  # a term in N may take E's place
        least = min(float(each.loss.min()) for each in data)
        likely = profile_interval(lambda E, near: best_laws(data, kind, near, held=E), fitted, least, level)
    laws = {}
    for i, (each, law) in enumerate(zip(data, fitted, strict=True)):
        own = tuple(sample[i] for sample in samples)
        intervals = {
            name: _interval(name, value, [sample.coefficients[name] for sample in own], freedom, level)
            for name, value in (law.coefficients.items() if len(own) > 1 else ())
        }
        if likely is not None:
            drawn_E = intervals["E"]
            intervals["E"] = Interval(min(drawn_E.low, likely.low), max(drawn_E.high, likely.high), level)
        laws[each.name] = replace(law, intervals=intervals, samples=own, freedom=freedom)
    return laws


def _interval(name: str, value: float, draws: Sequence[float], freedom: float, level: float) -> Interval:
    """Student's t with the resamples' error, which covers the truth more often than their percentiles do.

    On the logarithm for amplitudes and exponents, which are positive and may span decades. E is at least 0.
    """
    if name == "E":
        around = student_interval(value, float(np.std(draws, ddof=1)), freedom, level)
        return Interval(max(around.low, 0.0), around.high, level)
    logs = np.log(np.maximum([value, *draws], 1e-300))
    around = student_interval(float(logs[0]), float(np.std(logs[1:], ddof=1)), freedom, level)
    low, high = np.exp(np.clip([around.low, around.high], -700, 700))
    return Interval(float(low), float(high), level)


def best_laws(
    data: Sequence[LossPoints], kind: str, start: Sequence[LossLaw] | None = None, held: float | None = None
) -> list[LossLaw]:
    """The best laws, with one E for all (`held`, or the best), from near ones, or else from `STARTS` points."""
    problem = _Problem(data, kind, held)
    if start is not None and held is not None:
        start = _moved(start, held)
    starts = _starts(problem) if start is None else [problem.theta_of(start)]
    search = scipy("scipy.optimize").least_squares
    settings: Any = {"jac": problem.jacobian, "loss": "huber", "f_scale": HUBER, "max_nfev": 2000}
    solutions = [search(problem.residuals, theta, **settings) for theta in starts]
    best = min(solutions, key=lambda solution: solution.cost)
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
        scaled = zip([term for law in laws for term in law.terms], itertools.chain(*self.scales), strict=True)
        own = [(math.log(max(A, 1e-300)) - alpha * math.log(scale), math.log(alpha)) for (A, alpha), scale in scaled]
        return np.array([math.log(share / (1 - share)), *itertools.chain(*own)])

    def laws(self, theta: np.ndarray) -> list[LossLaw]:
        """The laws at theta."""
        E, terms = self._unpack(theta)
        lengths = np.cumsum([len(each.loss) for each in self.data])
        errors = np.split(self.residuals(theta), lengths[:-1])
        laws = []
        for each, own, scales, mine in zip(self.data, terms, self.scales, errors, strict=True):
            fitted = [(math.exp(log_a), math.exp(log_alpha)) for log_a, log_alpha in own]
            back = [(a * scale**alpha, alpha) for (a, alpha), scale in zip(fitted, scales, strict=True)]
            if self.kind == "broken":
                back.sort(key=lambda term: -term[1])  # terms are ordered by exponent
            spread = float(np.var(np.log(each.loss)))
            measured = tuple((float(column.min()), float(column.max())) for column in each.columns)
            r2 = 1 - float(np.mean(mine**2)) / spread if spread else math.nan
            laws.append(LossLaw(self.kind, E, tuple(back), measured, r2, mine))
        return laws

    def _unpack(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """E (between 0 and the least loss), and for each law its terms' (log amplitude, log exponent)."""
        E = self.floor / (1 + math.exp(-min(max(theta[0], -500), 500))) if self.held is None else self.held
        return E, theta[1:].reshape(len(self.data), KINDS[self.kind], 2)


def _parts(own: np.ndarray, xs: list[np.ndarray]) -> list[np.ndarray]:
    powers = (log_a - math.exp(min(log_alpha, 50)) * x for (log_a, log_alpha), x in zip(own, xs, strict=True))
    return [np.exp(np.minimum(power, 300)) for power in powers]


def _moved(laws: Sequence[LossLaw], E: float) -> list[LossLaw]:
    """The laws with another E, which their first terms make up for."""
    away = E - laws[0].E
    firsts = [(max(A - away, 0.05 * A), alpha) for (A, alpha), *_ in (law.terms for law in laws)]
    return [replace(law, E=E, terms=(first, *law.terms[1:])) for law, first in zip(laws, firsts, strict=True)]


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
                best = min(best, (error, amplitudes, alphas), key=lambda each: each[0])
            total += best[0] ** 2
            for amplitude, alpha in zip(best[1], best[2], strict=True):
                theta += [math.log(max(amplitude, 1e-6 * floor)), math.log(alpha)]
        candidates.append((total, np.array(theta)))
    candidates.sort(key=lambda candidate: candidate[0])
    return [theta for _, theta in candidates[:STARTS]]


def profile_interval(refit: Callable[[float, Laws], Laws], best: Laws, floor: float, level: float) -> Interval:
    """The interval of E by the likelihood ratio, for residuals with Laplace's distribution: 2 n log(b / b_best).

    `refit` gives laws with an E that is held, from those at a neighbouring E; `best` were fitted together with theirs;
    E is between 0 and `floor`, the least loss.
    """
    allowed = float(scipy("scipy.stats").chi2.ppf(level, 1))
    n, least = sum(len(law.residuals) for law in best), _spread(best)

    def is_compatible(laws: Laws) -> bool:
        return 2 * n * math.log(_spread(laws) / least) <= allowed

    def farthest(end: float) -> float:
        good, laws = best[0].E, best
        steps = _STEPS if abs(end - good) > _NOTHING * floor else 1
        for E in np.linspace(good, end, steps + 1)[1:]:
            refitted = refit(float(E), laws)
            if not is_compatible(refitted):
                return _halved(good, float(E), laws)
            good, laws = float(E), refitted
        return end

    def _halved(good: float, bad: float, laws: Laws) -> float:
        for _ in range(_HALVINGS):
            middle = (good + bad) / 2
            if is_compatible(refit(middle, laws)):
                good = middle
            else:
                bad = middle
        return good

    return Interval(farthest(0.0), farthest(0.999 * floor), level)


def _spread(laws: Sequence[LossLaw]) -> float:
    return max(float(np.mean(np.abs(np.concatenate([law.residuals for law in laws])))), 1e-12)
