"""Contents of a ladder's report, in order: figures with captions, tables, sections."""

from collections.abc import Callable
from dataclasses import dataclass

from matplotlib.figure import Figure

from danalab.report.data import MissingFigure, ReportData
from danalab.report.figures.cost import cost_figure
from danalab.report.figures.horizon import horizon_loss_figure, multiplier_figure
from danalab.report.figures.ladder import curves_figure, law_figure, lr_law_figure, residual_figure
from danalab.report.figures.optimizer_state import clipping_figure, schedule_figure, tau_figure
from danalab.report.figures.saved import gain_figure, saved_figure
from danalab.report.figures.sweeps import gamma3_figure, kappa_figure
from danalab.report.figures.tuning import curvature_figure, sensitivity_figure
from danalab.report.tables.horizon import TITLES as HORIZON_TITLES
from danalab.report.tables.registered import TITLE as REGISTERED_TITLE

FOLDED = ("tolerance", "predicted")
"""Tables that are folded away."""


@dataclass(frozen=True)
class FigureSpec:
    """A figure of the report."""

    draw: Callable[[ReportData], Figure | MissingFigure]
    caption: str


FIGURES = {
    "compute-saved": FigureSpec(
        saved_figure,
        "Compute saved at equal loss, at each size: at the baseline's final loss where it was reached (above 0), else "
        "at the contender's own final loss (below 0). Bars are 95% intervals over seeds; hollow points have fewer than "
        "three seeds, and their noise is not known.",
    ),
    "compute-saved-laws": FigureSpec(
        gain_figure,
        "Compute saved at equal loss, read off the fitted laws over the losses that both measured; bands are 95% "
        "intervals over resampled runs. Dashed: the laws beyond what was measured.",
    ),
    "horizon-gain": FigureSpec(
        multiplier_figure,
        "Tokens that the baseline needs for the loss of an optimizer, over the tokens that this one had, against the "
        "horizon. Bars are 95% intervals; lines are the law of all sizes together. A gain that grows with the horizon "
        "rises.",
    ),
    "horizon-loss": FigureSpec(
        horizon_loss_figure,
        "Final loss against the tokens of the whole run, each run with a schedule of its own length: mean over seeds, "
        "bars from lowest to highest (hollow: one seed), and the law.",
    ),
    "loss-compute": FigureSpec(
        law_figure,
        "Final loss against compute, a point a size (mean over seeds, bars from lowest to highest; hollow: one seed), "
        "with the fitted laws and their 95% bands; right: the distance from the baseline at the same size and horizon.",
    ),
    "residuals": FigureSpec(residual_figure, "Distance of each run from its law; above zero the run was worse."),
    "loss-curves": FigureSpec(
        curves_figure,
        "Validation loss over training at each size, at the best learning rate: mean over seeds, band from lowest to "
        "highest. The first fall is left out.",
    ),
    "lr-sensitivity": FigureSpec(
        sensitivity_figure,
        "Cost of a wrong learning rate: final loss above the optimizer's best, against the multiplier of its "
        "learning-rate law (bars over seeds; hollow: one seed). Crosses at the upper edge lie above it, or their loss "
        "was not finite. Dotted: the parabola of the curvature, where there are learning rates enough.",
    ),
    "lr-curvature": FigureSpec(
        curvature_figure,
        "Curvature k of the final loss around the best learning rate: a factor f off costs k log(f)^2. Points: sizes "
        "with five learning rates or more; lines: one curvature for all sizes, with its 95% interval, dotted where "
        "that reaches 0.",
    ),
    "lr-law": FigureSpec(
        lr_law_figure,
        "Best learning rate of each size (large points), those whose loss lies within 1% of its loss (wide bars), all "
        "that were tried (small points), and the law through the best few with the 95% band of resampled sizes. "
        "With few rates the law weighs all of them and is drawn towards their middle.",
    ),
    "schedules": FigureSpec(schedule_figure, "Recorded schedules of each optimizer's largest and longest tuned run."),
    "kappa": FigureSpec(
        kappa_figure,
        "Final loss against kappa, each value at its best learning rate (bars over seeds; hollow: one seed); small "
        "points are the other learning rates, a dotted level is the baseline's loss.",
    ),
    "gamma3": FigureSpec(
        gamma3_figure,
        "Final loss against gamma3, each value at its best learning rate (bars over seeds; hollow: one seed); small "
        "points are the other learning rates. Right, where there are several horizons: the best value of each, hollow "
        "where it is the outermost one tried, so that a better one may lie beyond.",
    ),
    "tau": FigureSpec(
        tau_figure,
        "Distribution of tau over the coordinates of each kind of matrix, from both tails of its order statistics.",
    ),
    "snr-clipping": FigureSpec(
        clipping_figure,
        "Share of coordinates whose damped momentum is held to clipsnr, by kind of matrix and layer; one run.",
    ),
    "cost": FigureSpec(
        cost_figure,
        "Device-hours by purpose; right: time of a token against the baseline's at the largest common "
        "size, of each optimizer's fastest run by its median step. Wall time, so other jobs on the machine add to it.",
    ),
}
"""Figures by file name."""

SECTIONS: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("saved", "Compute saved", ("compute-saved", "compute-saved-laws"), ("saved",)),
    ("horizon", "The horizon", ("horizon-gain", "horizon-loss"), tuple(HORIZON_TITLES)),
    ("laws", "Loss against compute", ("loss-compute", "residuals"), ("laws", "registered")),
    ("curves", "Loss curves", ("loss-curves",), ()),
    (
        "tuning",
        "Tuning",
        ("lr-sensitivity", "lr-curvature", "lr-law"),
        ("tuned", "tolerance", "shared-curvature", "lr-laws", "predicted"),
    ),
    ("inside", "Inside the optimizers", ("schedules", "kappa", "gamma3", "tau", "snr-clipping"), ()),
    ("cost", "Cost", ("cost",), ("cost",)),
)
"""Anchor, heading, figures, tables."""

TITLES = {
    "saved": "",
    "tuned": "Tuned runs",
    "laws": "Laws of the final loss, E + A C^-alpha (+ B C^-beta), with 95% intervals",
    "lr-laws": "Laws of the best learning rate, a (b + P)^d",
    "shared-curvature": "One curvature for all sizes",
    "tolerance": "Learning rates close to the best loss",
    "predicted": "Learning rates by these laws",
    "cost": "Costs",
    "registered": REGISTERED_TITLE,
    **HORIZON_TITLES,
}
