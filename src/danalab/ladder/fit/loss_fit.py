"""Fits of the laws of the final loss (`danalab.ladder.fit.loss_law`), with intervals over resampled runs.

Huber's loss of log residuals is minimised. For given exponents a law is linear in everything else, so that starting
points come from non-negative least squares on a grid of exponents: no initial guess is needed. Several optimizers
can be fitted together with one E, which is a property of the model and the data, not of the optimizer.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from danalab.errors import UserError, nearest
from danalab.ladder.fit.loss_law import KINDS, LossLaw, columns_of
from danalab.ladder.fit.profile import profile_interval
from danalab.ladder.fit.retuning import Resampler
from danalab.ladder.fit.statistics import Interval, resampled_freedom, scipy, student_interval

HUBER = 1e-3
"""Log residual above which a point counts linearly, so that failed runs do not bend the law."""

EXPONENTS = np.geomspace(0.02, 1.5, 14)

STARTS = 4


def check_points(x: ArrayLike | Sequence[ArrayLike], loss: ArrayLike, kind: str) -> None:
    """Check that `fit_loss_law` takes these points."""
    _Data.of("", kind, x, loss)


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
        loss: final loss of each run [nats a token].
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
        resamplers: optimizer -> how its losses are drawn, in place of `groups`; see `danalab.ladder.fit.retuning`.
    Raises:
        UserError: as `fit_loss_law`.
    """
    resamplers = resamplers or {}
    data = [_Data.of(name, kind, x, y) for name, (x, y) in curves.items()]
    fitted = _fit(data, kind)
    rng = np.random.default_rng(seed)
    samples: list[list[LossLaw]] = []
    for _ in range(n_bootstrap):
        drawn = [
            _Data(each.name, each.columns, resamplers[each.name](rng))
            if each.name in resamplers
            else each.resampled(rng, law, None if groups is None else groups[each.name])
            for each, law in zip(data, fitted, strict=True)
        ]
        samples.append(_fit(drawn, kind, start=fitted))
    freedom = max(sum(len(each.loss) for each in data) - 1 - 2 * KINDS[kind] * len(data), 1)
    if groups is not None:  # the noise is known from seeds alone
        repeats = sum(len(labels) - len(set(map(str, labels))) for labels in map(groups.__getitem__, curves))
        freedom = min(freedom, repeats) if repeats else freedom
    if n_bootstrap > 1:
        freedom = resampled_freedom(freedom, n_bootstrap)
    likely = None
    if kind == "chinchilla" and n_bootstrap > 1:  # a term in N may take E's place
        least = min(float(each.loss.min()) for each in data)
        likely = profile_interval(lambda E, near: _fit(data, kind, _moved(near, E), held=E), fitted, least, level)
    found = {}
    for i, (each, law) in enumerate(zip(data, fitted, strict=True)):
        own = tuple(sample[i] for sample in samples)
        intervals = {
            name: _interval(name, value, [sample.coefficients[name] for sample in own], freedom, level)
            for name, value in (law.coefficients.items() if len(own) > 1 else ())
        }
        if likely is not None:
            drawn_E = intervals["E"]
            intervals["E"] = Interval(min(drawn_E.low, likely.low), max(drawn_E.high, likely.high), level)
        found[each.name] = LossLaw(
            kind, law.E, law.terms, law.measured, law.r2, law.residuals, intervals, own, freedom
        )  # fmt: skip
    return found


def _interval(name: str, value: float, draws: Sequence[float], freedom: float, level: float) -> Interval:
    """Student's t with the resamples' error, which covers the truth more often than their percentiles do.

    On the logarithm for amplitudes and exponents, which are positive and may span decades. E is at least 0.
    """
    if name == "E":
        found = student_interval(value, float(np.std(draws, ddof=1)), freedom, level)
        return Interval(max(found.low, 0.0), found.high, level)
    logs = np.log(np.maximum([value, *draws], 1e-300))
    found = student_interval(float(logs[0]), float(np.std(logs[1:], ddof=1)), freedom, level)
    low, high = np.exp(np.clip([found.low, found.high], -700, 700))
    return Interval(float(low), float(high), level)


def points_needed(kind: str) -> int:
    """Different points that a law needs: one more than coefficients, as a law through every point has no residuals."""
    return 2 + 2 * KINDS[kind]


@dataclass(frozen=True)
class _Data:
    """Points of one law."""

    name: str
    columns: list[np.ndarray]
    loss: np.ndarray

    @classmethod
    def of(cls, name: str, kind: str, x: Any, y: ArrayLike) -> "_Data":
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

    def resampled(self, rng: np.random.Generator, law: LossLaw, groups: Sequence[Any] | None) -> "_Data":
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
        return _Data(self.name, self.columns, np.exp(drawn))


def _are_proportional(N: np.ndarray, D: np.ndarray) -> bool:
    """Whether D is a power of N, to 2%."""
    n, d = np.log(N), np.log(D)
    slope, level = np.polyfit(n, d, 1) if np.ptp(n) > 0 else (0.0, d.mean())
    return bool(np.max(np.abs(d - slope * n - level)) < 0.02)


def _moved(laws: Sequence[LossLaw], E: float) -> list[LossLaw]:
    """The laws with another E, which their first terms make up for."""
    away = E - laws[0].E
    return [
        replace(law, E=E, terms=((max(A - away, 0.05 * A), alpha), *others))
        for law in laws
        for (A, alpha), *others in [law.terms]
    ]


def _fit(
    data: Sequence[_Data], kind: str, start: Sequence[LossLaw] | None = None, held: float | None = None
) -> list[LossLaw]:
    """The best laws, with one E for all, or with the E that is `held`."""
    optimize = scipy("scipy.optimize")
    # Scaled to a geometric mean of 1, amplitudes and exponents hardly depend on each other.
    scales = [[float(np.exp(np.mean(np.log(column)))) for column in each.columns] for each in data]
    logs = [
        [np.log(column / scale) for column, scale in zip(each.columns, own, strict=True)]
        for each, own in zip(data, scales, strict=True)
    ]
    targets = [np.log(each.loss) for each in data]
    floor = min(float(each.loss.min()) for each in data)
    n_terms = KINDS[kind]

    def unpack(theta: np.ndarray) -> tuple[float, np.ndarray]:
        """E (between 0 and the least loss), and for each law its terms' (log amplitude, exponent)."""
        E = floor / (1 + math.exp(-min(max(theta[0], -500), 500))) if held is None else held
        return E, theta[1:].reshape(len(data), n_terms, 2)

    def parts_of(own: np.ndarray, xs: list[np.ndarray]) -> list[np.ndarray]:
        powers = (log_a - math.exp(min(log_alpha, 50)) * x for (log_a, log_alpha), x in zip(own, xs, strict=True))
        return [np.exp(np.minimum(power, 300)) for power in powers]

    def residuals(theta: np.ndarray) -> np.ndarray:
        E, terms = unpack(theta)
        predicted = [np.log(E + sum(parts_of(own, xs))) for own, xs in zip(terms, logs, strict=True)]
        return np.concatenate([ours - y for ours, y in zip(predicted, targets, strict=True)])

    def jacobian(theta: np.ndarray) -> np.ndarray:
        E, terms = unpack(theta)
        J = np.zeros((sum(len(y) for y in targets), len(theta)))
        row = 0
        for i, (own, xs) in enumerate(zip(terms, logs, strict=True)):
            parts = parts_of(own, xs)
            predicted = E + sum(parts)
            rows = slice(row, row + len(xs[0]))
            row = rows.stop
            J[rows, 0] = E * (1 - E / floor) / predicted if held is None else 0.0
            for k, (part, x) in enumerate(zip(parts, xs, strict=True)):
                at = 1 + 2 * (i * n_terms + k)
                J[rows, at] = part / predicted
                J[rows, at + 1] = -part * x * math.exp(own[k][1]) / predicted
        return J

    starts = [_theta(start, scales, floor)] if start is not None else _starts(data, logs, floor, kind)
    best = min(
        (
            optimize.least_squares(residuals, theta, jac=jacobian, loss="huber", f_scale=HUBER, max_nfev=2000)
            for theta in starts
        ),
        key=lambda found: found.cost,
    )
    E, terms = unpack(best.x)
    laws, first = [], 0
    errors = residuals(best.x)
    for each, own, scale in zip(data, terms, scales, strict=True):
        mine = errors[first : first + len(each.loss)]
        first += len(each.loss)
        fitted = [(math.exp(log_a), math.exp(log_alpha)) for log_a, log_alpha in own]
        back = [(a * s**alpha, alpha) for (a, alpha), s in zip(fitted, scale, strict=True)]
        if kind == "broken":
            back.sort(key=lambda term: -term[1])  # terms are ordered by exponent
        spread = float(np.var(np.log(each.loss)))
        laws.append(
            LossLaw(
                kind,
                E,
                tuple(back),
                tuple((float(column.min()), float(column.max())) for column in each.columns),
                1 - float(np.mean(mine**2)) / spread if spread else math.nan,
                mine,
            )
        )
    return laws


def _theta(laws: Sequence[LossLaw], scales: list[list[float]], floor: float) -> np.ndarray:
    """The search parameters of these laws."""
    share = min(max(laws[0].E / floor, 1e-6), 1 - 1e-6)
    own = [
        (math.log(max(A, 1e-300)) - alpha * math.log(scale), math.log(alpha))
        for law, scale_of_terms in zip(laws, scales, strict=True)
        for (A, alpha), scale in zip(law.terms, scale_of_terms, strict=True)
    ]
    return np.array([math.log(share / (1 - share)), *itertools.chain(*own)])


def _starts(data: Sequence[_Data], logs: list[list[np.ndarray]], floor: float, kind: str) -> list[np.ndarray]:
    """Starting points: for each of some E, every law's best exponents on the grid."""
    nnls = scipy("scipy.optimize").nnls
    grid = list(
        itertools.combinations(EXPONENTS, 2) if kind == "broken" else itertools.product(EXPONENTS, repeat=KINDS[kind])
    )
    candidates = []
    for share in (0.02, 0.3, 0.5, 0.65, 0.8, 0.9, 0.97):
        theta, total = [math.log(share / (1 - share))], 0.0
        for each, xs in zip(data, logs, strict=True):
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
