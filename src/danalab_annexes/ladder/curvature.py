"""Study: the curvature of the final loss in the logarithm of the learning rate, at each size and of all together.

L(lr) = L* + k (log lr - log lr*)^2,   so an error of a factor 1 + e costs k log(1 + e)^2

One size needs five rates for its k; `danalab.ladder.fit.rate_laws` has that of all sizes.
"""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from danalab.errors import UserError
from danalab.ladder.fit.tuning import Row, losses_by_rate
from danalab.ladder.studies import Address, Analysis, LadderStudy, PageSection, by_size
from danalab.report.formats import Table, or_dash, span

LEAST_RATES = 5


@dataclass(frozen=True)
class LossParabola:
    """A parabola through the losses around the best learning rate."""

    curvature: float
    """k [nats/token per squared e-fold of the learning rate]."""
    best_lr: float
    best_loss: float
    n_rates: int

    def loss_increase(self, factor: float) -> float:
        """Loss added by a learning rate `factor` times the best one [nats/token]."""
        return self.curvature * math.log(factor) ** 2


def fit_curvature(lr: ArrayLike, loss: ArrayLike) -> LossParabola:
    """Fit the parabola to finite losses; where all rates together have no minimum, to those nearest to the best one."""
    x, y = np.log(np.asarray(lr, float)), np.asarray(loss, float)
    keep = np.isfinite(x) & np.isfinite(y)
    x, y = x[keep], y[keep]
    if len(np.unique(x)) < LEAST_RATES:
        raise UserError(f"curvature needs {LEAST_RATES} learning rates, there are {len(np.unique(x))}")
    nearest = np.argsort(np.abs(x - x[np.argmin(y)]), kind="stable")
    for count in (len(x), LEAST_RATES):
        chosen = nearest[:count]
        k, slope, level = np.polyfit(x[chosen], y[chosen], 2)
        if k > 0:
            centre = -slope / (2 * k)
            return LossParabola(float(k), math.exp(centre), float(level - slope**2 / (4 * k)), count)
    raise UserError("the losses have no minimum over these learning rates; add rates beyond the best one")


def tolerance_table(analysis: Analysis) -> Table:
    """A line for each optimizer and size: the learning rates within a share of the best loss. A bound with <= or >=
    is the outermost rate tried: the interval may extend beyond it."""
    lines, within = [], 0.0
    for opt, sizes in analysis.tolerances.items():
        for params, each in sorted(sizes.items()):
            within = 100 * each.within
            own = analysis.studies["curvature"].get(opt, {}).get(params)
            lines.append([
                opt, f"{params:,}", str(each.n_rates), f"{each.best_lr:.3g}",
                f"{'<= ' if each.low_is_open else ''}{each.low:.3g}",
                f"{'>= ' if each.high_is_open else ''}{each.high:.3g}", or_dash(own and own.curvature, ".4f"),
            ])  # fmt: skip
    return ["optimizer", "parameters", "rates", "best", f"lowest within {within:.3g}%", "highest", "curvature"], lines


def shared_curvature_table(analysis: Analysis) -> Table:
    """A line for each optimizer: the curvature of the loss in log lr that its sizes share, and the cost of factors.

    Where the interval of the curvature reaches 0, its costs are not known.
    """
    lines = [
        [
            opt, f"{each.curvature:.4f}", span(each.interval, ".4f"),
            *(f"{each.loss_increase(factor):+.4f}" if each.is_known else "not known" for factor in (1.2, 1.5, 2.0)),
            str(each.n_sizes), str(each.n_rates),
        ]
        for opt, each in analysis.shared_curvatures.items()
    ]  # fmt: skip
    return ["optimizer", "curvature", "95% interval", "lr 1.2x off", "1.5x", "2x", "sizes", "rates"], lines


class Curvature(LadderStudy):
    """Sensitivity to the learning rate: `LossParabola` by optimizer and parameters."""

    name = "curvature"
    sections = (
        PageSection("tuning", "Tuning", ("lr-sensitivity", "lr-curvature"), before="lr-law"),
        PageSection("tuning", "Tuning", (), ("tolerance", "shared-curvature"), before="lr-laws"),
    )
    folded = ("tolerance",)

    def analyse_optimizer(self, analysis: Analysis, opt: str, rows: Sequence[Row], n_bootstrap: int, seed: int) -> None:
        own = analysis.studies.setdefault(self.name, {})[opt] = {}
        for each in analysis.at(opt):
            with contextlib.suppress(UserError):  # fewer rates than a parabola needs: most ladders have three
                own[each.params] = fit_curvature(*losses_by_rate(rows, each))

    def as_dict(self, analysis: Analysis) -> dict[str, Any]:
        own = analysis.studies[self.name].items()
        return {
            "curvatures": by_size({opt: {params: asdict(each) for params, each in sizes.items()} for opt, sizes in own})
        }

    def tables(self, analysis: Analysis, address: Address | None, folder: Path | None) -> dict[str, tuple[str, Table]]:
        return {
            "tolerance": ("Learning rates that lose little", tolerance_table(analysis)),
            "shared-curvature": (
                "Cost of a wrong learning rate [nats/token], one curvature for all sizes",
                shared_curvature_table(analysis),
            ),
        }

    def figures(self) -> dict[str, Any]:
        from danalab_annexes.ladder.figures import curvature_figure, sensitivity_figure

        return {
            "lr-sensitivity": (
                sensitivity_figure,
                "Cost of a wrong learning rate: final loss above the optimizer's best, against the multiplier of its "
                "learning-rate law (bars over seeds; hollow: one seed). Crosses at the upper edge lie above it, or "
                "their loss was not finite. Dotted: the parabola of the curvature, where there are learning rates "
                "enough.",
            ),
            "lr-curvature": (
                curvature_figure,
                "Curvature k of the final loss around the best learning rate: a factor f off costs k log(f)^2. Points: "
                "sizes with five learning rates or more; lines: one curvature for all sizes, with its 95% interval, "
                "dotted where that reaches 0.",
            ),
        }
