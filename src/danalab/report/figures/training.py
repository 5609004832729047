"""Figures of training runs: loss against tokens, compute or steps, and against learning rate."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from danalab.colors import optimizer_color
from danalab.report.data import CurvePoint, RunCurve
from danalab.report.figures import drawing
from danalab.report.formats import short
from danalab.train.config.fields import names_of
from danalab.train.config.train_config import TrainConfig

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SEEDS = ("seed", "data_seed")
SHAPE = ("heads", "size", "d_model", "n_layers", "n_heads", "head_dim", "mlp_dim", "n_kv_heads")
STYLES = ("-", (0, (5, 2)), (0, (2, 1.2)), "-.", (0, (1, 1)))
"""Line styles of an optimizer's lines, which share its colour."""
MOST_WORDS = 3  # maximum number of differences in a line's name

CURVES_CAPTION = (
    "Seeds are one line, their mean, with a band from lowest to highest. The evaluations of a curve, and so the dotted "
    "line at the baseline's last one, are over a fixed set of windows; the losses of the table are over all of the "
    "validation split."
)
"""Of `loss_figure`."""

AXES: dict[str, tuple[str, Callable[[CurvePoint], float]]] = {
    "tokens": ("training tokens", lambda point: point.tokens),
    "flops": ("training compute [FLOPs]", lambda point: point.flops),
    "step": ("optimizer steps", lambda point: point.step),
}
"""Horizontal axes: label with unit, and the coordinate of a point."""


@drawing.styled
def loss_figure(curves: Sequence[RunCurve], axis: str = "tokens", baseline: RunCurve | None = None) -> "Figure":
    """Validation loss against tokens, compute or steps.

    Runs that differ in nothing but the seed are drawn as one: mean line, band from lowest to highest. The baseline's
    last evaluation is a dotted line, so that crossings are visible.
    """
    label, position = AXES[axis]
    figure, axes = drawing.canvas(label, drawing.LOSS)
    drawn: Counter[str] = Counter()
    for name, runs in _by_settings(curves).items():
        _draw_group(axes, name, runs, position, STYLES[drawn[runs[0].opt] % len(STYLES)])
        drawn[runs[0].opt] += 1
    if baseline is not None:
        axes.axhline(
            baseline.final.val_loss, color=optimizer_color(baseline.opt), linestyle=":", linewidth=1,
            label=f"{baseline.opt}'s last evaluation",
        )  # fmt: skip
    axes.set_xscale("log")
    _zoom(axes, curves, position)
    (drawing.powers if axis == "flops" else drawing.counts)(axes.xaxis)
    drawing.legend(figure)
    return figure


@drawing.styled
def lr_figure(curves: Sequence[RunCurve]) -> "Figure":
    """Final validation loss against peak learning rate: the tuning of each optimizer."""
    figure, axes = drawing.canvas("peak learning rate", "final " + drawing.LOSS)
    by_opt: dict[str, list[RunCurve]] = defaultdict(list)
    for curve in curves:
        by_opt[curve.opt].append(curve)
    for opt, runs in by_opt.items():
        runs = sorted(runs, key=lambda run: run.config["config"]["lr"])
        rates = [run.config["config"]["lr"] for run in runs]
        losses = [run.final.val_loss for run in runs]
        axes.plot(rates, losses, label=f"{opt} ({len(runs)} trial{'s' * (len(runs) > 1)})", **drawing.look(opt))
    axes.set_xscale("log")
    drawing.widen(axes.xaxis, [curve.config["config"]["lr"] for curve in curves])
    drawing.powers(axes.xaxis)
    drawing.legend(figure)
    return figure


def _by_settings(curves: Sequence[RunCurve]) -> dict[str, list[RunCurve]]:
    """Runs that differ only in seeds, by a name with their differences from others of the optimizer."""
    groups: dict[str, list[RunCurve]] = defaultdict(list)
    for curve in curves:
        groups[json.dumps(_settings(curve), sort_keys=True, default=str)].append(curve)
    several_sizes = len({curve.config["params"] for curve in curves}) > 1
    named: dict[str, list[RunCurve]] = {}
    for runs in groups.values():
        relatives = [_settings(other[0]) for other in groups.values() if other[0].opt == runs[0].opt]
        size = [f"{short(runs[0].config['params'])} parameters"] if several_sizes else []
        name = ", ".join([runs[0].opt, *size, *_peculiar(_settings(runs[0]), relatives)])
        name = name if name not in named else f"{name}, {runs[0].name}"
        named[f"{name} ({len(runs)} seeds)" if len(runs) > 1 else name] = runs
    return named


def _settings(curve: RunCurve) -> dict[str, Any]:
    """The configuration without seeds and mechanics, and the size."""
    left_out = {*names_of(TrainConfig, "input", "execution", "job"), *SEEDS}
    kept = {key: value for key, value in curve.config["config"].items() if key not in left_out and value is not None}
    return {**kept, "params": curve.config["params"]}


def _peculiar(settings: dict[str, Any], relatives: Sequence[dict[str, Any]]) -> list[str]:
    """The main differences of these settings from the relatives', as text."""
    differing = [key for key in settings if len({str(other.get(key)) for other in relatives}) > 1]
    words: list[str] = []
    # Settings that follow from size or learning rate are left out.
    followers = {"params", *SHAPE, "lr_multiplier", "weight_decay", "wd_ts", "warmup_steps"}
    if "params" in differing:
        followers |= {"lr", "iterations"} if settings.get("lr_multiplier") == 1 else {"iterations"}
    for key in differing:
        if key not in followers:
            value = settings[key]
            words.append(f"{key.replace('_', ' ')} {value:.3g}" if isinstance(value, float) else f"{key} {value}")
    return words[:MOST_WORDS]


def _draw_group(
    axes: "Axes", name: str, runs: list[RunCurve], position: Callable[[CurvePoint], float], style: Any
) -> None:
    shared = set.intersection(*({point.step for point in run.points} for run in runs))
    picked = [[point for point in run.points if point.step in shared and point.tokens > 0] for run in runs]
    x = [position(point) for point in picked[0]]
    losses = np.array([[point.val_loss for point in points] for points in picked])
    drawing.band(axes, x, losses, optimizer_color(runs[0].opt), label=name, linestyle=style, linewidth=1.6)


def _zoom(axes: "Axes", curves: Sequence[RunCurve], position: Callable[[CurvePoint], float]) -> None:
    points = [point for curve in curves for point in curve.points if point.tokens > 0]
    losses = [point.val_loss for point in points]
    lowest = min(losses)
    final = max(curve.final.val_loss for curve in curves)
    top = max(final + 0.1, min(max(losses), lowest + 0.45 * (max(losses) - lowest)))
    axes.set_ylim(lowest - 0.03 * (top - lowest), top)
    shown = [position(point) for point in points if point.val_loss <= top]
    axes.set_xlim(0.9 * min(shown), 1.1 * max(shown))
