"""Fits of the laws of the final loss (`danalab.ladder.fit.loss_law`), with intervals over resampled runs.

Several optimizers can be fitted together with one E: it is a property of the model and the data, not of the optimizer.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from danalab.ladder.fit.loss_law import KINDS, LossLaw
from danalab.ladder.fit.loss_points import LossPoints
from danalab.ladder.fit.loss_search import best_laws
from danalab.ladder.fit.profile import profile_interval
from danalab.ladder.fit.retuning import Resampler
from danalab.ladder.fit.statistics import Interval, resampled_freedom, student_interval


def check_points(x: ArrayLike | Sequence[ArrayLike], loss: ArrayLike, kind: str) -> None:
    """Check that `fit_loss_law` takes these points."""
    LossPoints.of("", kind, x, loss)


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
