"""Study: exponents of the best value of a setting over sizes, horizons and batches.

    log x* = log a + d log P + h log f + b log T        P parameters without embeddings, f horizon, T tokens per step

x* of a rung is the vertex of a parabola in log x through its trials, with one curvature for all rungs; where the
interval of that reaches 0, the best value tried. The law is least squares over rungs. The variance of a rung's log x*
is that of the noise between seeds (trials are drawn again, the vertex is computed again) plus that of the grid,
uniform over a step, or over two where the best value is the outermost one. Where rungs scatter more about the law
than that, their scatter counts. The exponent's error also has half a step over the whole range of the axis.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from danalab.errors import UserError
from danalab.ladder.fit.rate_laws import fit_shared_curvature
from danalab.ladder.fit.statistics import Interval, student_interval
from danalab.ladder.fit.tuning import Row, TunedSize, horizon_of, retuned
from danalab.ladder.studies import Address, Analysis, LadderStudy, PageSection
from danalab.report.formats import Table, span
from danalab_annexes.ladder.budget import tuned_size

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
    known = False
    with contextlib.suppress(UserError):
        known = fit_shared_curvature([(rung.rates, np.log(rung.losses)) for rung in tuned]).is_known
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
            name: student_interval(float(coefficients[i]), float(errors[i]), freedom)
            for i, name in enumerate(names, start=1)
        }
    return ExponentLaw(
        math.exp(coefficients[0]), dict(zip(names, map(float, coefficients[1:]), strict=True)), intervals,
        {name: (float(table[name].min()), float(table[name].max())) for name in names}, len(tuned), sum(edges),
    )  # fmt: skip


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


def exponents_table(laws: Mapping[str, ExponentLaw]) -> Table:
    """A line for each optimizer: the exponent of each axis that varied, with its interval."""
    names = [name for name in "PfT" if any(name in law.exponents for law in laws.values())]
    lines = [
        [
            opt,
            *(
                "-" if name not in law.exponents
                else f"{law.exponents[name]:.2f} ({span(law.intervals.get(name), '.2f')})" for name in names
            ),
            str(law.n_rungs), str(law.n_at_edge),
        ]
        for opt, law in laws.items()
    ]  # fmt: skip
    return ["optimizer", *(f"of {name} (95% interval)" for name in names), "rungs", "best at an edge"], lines


class Exponents(LadderStudy):
    """Exponents of the best learning rate, and of the best strength of weight decay where that varied."""

    name = "exponents"
    sections = (PageSection("tuning", "Tuning", tables=("rate-exponents", "decay-exponents")),)

    def analyse_optimizer(
        self, analysis: Analysis, opt: str, rows: Sequence[Row], n_bootstrap: int = 200, seed: int = 0
    ) -> None:
        """Add its laws to `analysis.studies["exponents"]`, dial -> optimizer -> law; none where nothing was tuned."""
        tuned = [each for each in analysis.every if each.opt == opt]
        firsts = [each.runs[0] for each in tuned]
        axes = {
            "P": [row["non_emb_params"] for row in firsts],
            "f": [horizon_of(row) for row in firsts],
            "T": [(row.get("batch") or 1) * (row["settings"].get("seq_len") or 1) for row in firsts],
        }
        laws = analysis.studies.setdefault(self.name, {"lr": {}, "omega": {}})
        for dial, what in (("lr", "the best learning rate"), ("omega", "the best weight-decay strength")):
            with contextlib.suppress(UserError):
                sizes = [tuned_size(each, rows, dial) for each in tuned]
                laws[dial][opt] = law = fit_exponents(axes, sizes, n_bootstrap=n_bootstrap, seed=seed)
                if not law.intervals:
                    analysis.notes.append(
                        f"{opt}: the exponents of {what} have no interval: {law.n_rungs} rungs, the best value at the "
                        f"edge of its grid on {law.n_at_edge}"
                    )

    def as_dict(self, analysis: Analysis) -> dict[str, Any]:
        laws = analysis.studies[self.name]
        return {
            name: {opt: asdict(law) for opt, law in laws[dial].items()}
            for name, dial in (("rate_exponents", "lr"), ("decay_exponents", "omega"))
        }

    def tables(self, analysis: Analysis, address: Address | None, folder: Path | None) -> dict[str, tuple[str, Table]]:
        laws = analysis.studies[self.name]
        return {
            "rate-exponents": (
                "Exponents of the best learning rate: parameters P, horizon f, tokens per step T",
                exponents_table(laws["lr"]),
            ),
            "decay-exponents": (
                "Exponents of the best strength of weight decay omega", exponents_table(laws["omega"])
            ),
        }  # fmt: skip
