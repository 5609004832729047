"""The figures of `danalab optim compare`."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from matplotlib.figure import Figure

from danalab.colors import optimizer_color
from danalab.optim.matrix.newton_schulz import METHODS, coefficients, iterate
from danalab.showcase.problems import Problem
from danalab.showcase.trials import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def curves_figure(problems: Sequence[Problem], results: Sequence[Result]) -> Figure:
    """One panel per problem: the measure against steps, each optimizer at its best learning rate.

    Lines are means over seeds (of the logarithm where the axis is logarithmic), bands reach from lowest to highest.
    """
    figure, panels = _panels(len(problems), 4.4)
    for problem, axes in zip(problems, panels, strict=True):
        shown = [result for result in results if result.problem == problem.name]
        for result in sorted(shown, key=lambda result: _typical(result.losses, problem.log)):
            color = optimizer_color(result.opt)
            losses = np.array([run.losses for run in result.best if math.isfinite(run.loss)])
            steps = result.best[0].steps
            middle = np.exp(np.log(losses).mean(axis=0)) if problem.log else losses.mean(axis=0)
            axes.plot(steps, middle, color=color, linewidth=1.8, label=f"{result.opt}, lr {result.best[0].lr:.2g}")
            if len(losses) > 1:
                axes.fill_between(steps, losses.min(axis=0), losses.max(axis=0), color=color, alpha=0.18, linewidth=0)
        _dress(axes, problem.title, "optimizer steps", problem.unit)
        if problem.log:
            axes.set(xscale="log", yscale="log")
            axes.set_xlim(left=1)
            axes.legend(frameon=False, fontsize=8, loc="lower left")
        else:
            _zoom(axes, shown)
            axes.legend(frameon=False, fontsize=8, loc="upper right")
    return figure


def lr_figure(problems: Sequence[Problem], results: Sequence[Result]) -> Figure:
    """One panel per problem: the last measurement of every trial against its learning rate."""
    figure, panels = _panels(len(problems), 3.8)
    for problem, axes in zip(problems, panels, strict=True):
        shown = [result for result in results if result.problem == problem.name]
        for result in shown:
            finite = [run for run in result.trials if math.isfinite(run.loss)]
            rates, losses = [run.lr for run in finite], [run.loss for run in finite]
            color = optimizer_color(result.opt)
            axes.plot(rates, losses, marker="o", markersize=3.5, color=color, linewidth=1.4, label=result.opt)
            axes.plot([result.best[0].lr], [result.best[0].loss], marker="o", markersize=8, color=color, mfc="none")
        _dress(axes, problem.title, "peak learning rate", f"at the end: {problem.unit}")
        axes.set(xscale="log")
        if problem.log:
            axes.set(yscale="log")
        axes.legend(frameon=False, fontsize=8)
    return figure


def orthogonalisation_figure(size: int = 96, steps: int = 5) -> Figure:
    """Singular values of a matrix with a spectrum from 1 to 1e-4 after each step of both orthogonalisations."""
    from matplotlib import colormaps

    draw = torch.Generator().manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(size, size, generator=draw).double()).Q for _ in range(2))
    x = left @ torch.diag(torch.logspace(0, -4, size, dtype=torch.float64)) @ right.T
    figure = Figure(figsize=(10.5, 4.2), layout="constrained")
    for axes, method in zip(figure.subplots(1, 2, sharey=True), METHODS, strict=True):
        chain = coefficients(method, steps)
        for step in range(steps + 1):
            values = torch.linalg.svdvals(
                iterate((x / x.norm())[None].clone(), chain[:step])[0] if step else x / x.norm()
            )
            color = colormaps["viridis"](0.9 * step / steps)
            label = "input, norm 1" if step == 0 else f"after step {step}"
            axes.plot(range(1, size + 1), values, color=color, linewidth=1.8, label=label)
        axes.axhline(1, color="0.4", linestyle=":", linewidth=1)
        _dress(
            axes,
            "Newton-Schulz" if method == "newton-schulz" else "Polar Express",
            "rank among the singular values",
            "singular value",
        )
        axes.set(yscale="log")
    figure.axes[0].legend(frameon=False, fontsize=8, loc="lower left")
    return figure


def _panels(count: int, height: float) -> "tuple[Figure, Sequence[Axes]]":
    figure = Figure(figsize=(5.2 * count, height), layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def _typical(losses: Sequence[float], log: bool) -> float:
    return math.exp(sum(map(math.log, losses)) / len(losses)) if log else sum(losses) / len(losses)


def _dress(axes: "Axes", title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize=10)
    axes.set(xlabel=x, ylabel=y)
    axes.grid(True, which="major", alpha=0.3, linewidth=0.6)


def _zoom(axes: "Axes", results: Sequence[Result]) -> None:
    """Leave out the first fall from the logarithm of the vocabulary, but no optimizer's final loss."""
    finals = [loss for result in results for loss in result.losses if math.isfinite(loss)]
    lowest, first = min(finals), max(result.best[0].losses[0] for result in results)
    span = first - lowest
    axes.set_ylim(lowest - 0.02 * span, max(lowest + 0.5 * span, max(finals) + 0.05 * span))
