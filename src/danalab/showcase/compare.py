"""All optimizers on all problems, side by side: pictures, a table and one page.

out/index.html                                 everything on one page
out/problems.png, lr.png, newton-schulz.png    the pictures (and .svg, .pdf)
out/table.md, compare.json                     the numbers
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from danalab.cli.optim_more import CompareConfig
from danalab.colors import SOFT, optimizer_color
from danalab.errors import UserError
from danalab.files import write_atomically, write_json
from danalab.optim import optimizer_spec
from danalab.optim.optimizers.matrix.newton_schulz import METHODS, coefficients, iterate
from danalab.report.figures.drawing import panels, save_figure, shades, styled, svg_text
from danalab.report.formats import as_markdown
from danalab.report.page import Page
from danalab.showcase.problems import SmallProblem, get_problem
from danalab.showcase.trials import RateSearch, Result, search_all


@dataclass(frozen=True)
class Comparison:
    """The results."""

    problems: tuple[SmallProblem, ...]
    results: tuple[Result, ...]
    """Problem by problem, in the order of the optimizers."""
    refused: dict[str, str]
    """"OPTIMIZER on PROBLEM" -> why there is no result."""
    files: tuple[Path, ...]

    def as_dict(self) -> dict[str, Any]:
        units = {each.name: {"measure": each.unit, "steps": each.steps} for each in self.problems}
        return {
            "problems": units,
            "results": [result.as_dict() for result in self.results],
            "refused": self.refused,
            "files": [str(file) for file in self.files],
        }


def compare_optimizers(config: CompareConfig, report: Callable[[str], None] = lambda line: None) -> Comparison:
    """Search, repeat, draw and write everything into `config.out`.

    UserError: an unknown optimizer or problem, numbers that make no comparison, or no optimizer can take part.
    """
    if not config.opts or not config.problems:
        raise UserError("optim compare: name at least one optimizer and one problem")
    opts = list(dict.fromkeys(optimizer_spec(opt).name for opt in config.opts))
    problems = tuple(get_problem(name, config.quick) for name in dict.fromkeys(config.problems))
    trials, seeds = (min(config.trials, 3), 1) if config.quick else (config.trials, config.seeds)
    config.out.mkdir(parents=True, exist_ok=True)  # before minutes of work
    # The slowest first, so that the cores finish together.
    searches = [RateSearch(each.name, opt, trials, seeds, config.quick) for each in reversed(problems) for opt in opts]
    tuned: dict[tuple[str, str], Result] = {}
    refused: dict[str, str] = {}
    for done, outcome in search_all(searches, config.jobs):
        if isinstance(outcome, Result):
            tuned[done.problem, done.opt] = outcome
            words = f"{fmean(outcome.losses):10.4g}   lr {outcome.best[0].lr:.2g}"
        else:
            refused[f"{done.opt} on {done.problem}"] = outcome
            words = f"left out: {outcome}"
        report(f"{done.problem:<10} {done.opt:<18} {words}")
    if not tuned:
        raise UserError(f"optim compare: {'; '.join(f'{key}: {why}' for key, why in refused.items())}")
    results = tuple(tuned[each.name, opt] for each in problems for opt in opts if (each.name, opt) in tuned)
    return _write(config, problems, results, refused)


HEADINGS = ("problem", "optimizer", "at the end", "lowest and highest", "best lr", "ms a step")


def table_rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """Table rows as text, the best of each problem first."""
    rows: list[tuple[str, ...]] = []
    for name in dict.fromkeys(result.problem for result in results):
        shown = [result for result in results if result.problem == name]
        for result in sorted(shown, key=lambda result: fmean(result.losses)):
            spread = f"{min(result.losses):.4g} to {max(result.losses):.4g}" if len(result.losses) > 1 else "one seed"
            best = result.best[0]
            speed = f"{best.ms_per_step:.2f}"
            rows.append((name, result.opt, f"{fmean(result.losses):.4g}", spread, f"{best.lr:.2g}", speed))
    return rows


def _write(
    config: CompareConfig, problems: tuple[SmallProblem, ...], results: tuple[Result, ...], refused: dict[str, str]
) -> Comparison:
    figures = {
        "problems": (curves_figure(problems, results), "Each optimizer at its best learning rate; bands: seeds."),
        "lr": (lr_figure(problems, results), "Every trial of the search; circles: the best."),
        "newton-schulz": (
            orthogonalisation_figure(),
            "What Muon does to a gradient: all its singular values go to 1, in five steps of matrix products.",
        ),
    }
    rows = table_rows(results)
    page = Page("Optimizers side by side", _lead(config, results))
    page.table(list(HEADINGS), rows)
    for each in problems:
        page.paragraph(f"{each.name}: {each.title}; {each.steps} steps; measured: {each.unit}.")
    for key, why in refused.items():
        page.paragraph(f"Left out: {key}. {why}")
    files: list[Path] = []
    for stem, (figure, caption) in figures.items():
        svg = svg_text(figure)
        files += save_figure(figure, config.out / stem, svg)
        page.figure(figure, caption, svg=svg)
    write_atomically(config.out / "table.md", as_markdown((HEADINGS, rows)))
    write_atomically(config.out / "index.html", page.render())
    files += [config.out / name for name in ("table.md", "index.html", "compare.json")]
    comparison = Comparison(problems, results, refused, tuple(files))
    write_json(config.out / "compare.json", comparison.as_dict())
    return comparison


def _lead(config: CompareConfig, results: Sequence[Result]) -> str:
    trials, seeds = len(results[0].trials), len(results[0].best)
    quick = " A quick look: the runs are far too short to judge by." if config.quick else ""
    return (
        f"The same number of learning-rate trials for each optimizer ({trials}), by one rule from its usual rate on;"
        f" then {seeds} runs at the best. One learning-rate schedule for all. Small problems show what an optimizer"
        f" does, not which is best for a large model.{quick}"
    )


@styled
def curves_figure(problems: Sequence[SmallProblem], results: Sequence[Result]) -> Figure:
    """One panel per problem: the measure against steps, each optimizer at its best learning rate.

    Lines are means over seeds (of the logarithm where the axis is logarithmic), bands reach from lowest to highest.
    """
    figure, grid = panels(len(problems), each=(5.2, 4.4))
    for problem, axes in zip(problems, grid, strict=True):
        shown = [result for result in results if result.problem == problem.name]
        mean = geometric_mean if problem.log else fmean
        for result in sorted(shown, key=lambda result: mean(result.losses)):
            color = optimizer_color(result.opt)
            losses = np.array([run.losses for run in result.best if math.isfinite(run.loss)])
            steps = result.best[0].steps
            middle = np.exp(np.log(losses).mean(axis=0)) if problem.log else losses.mean(axis=0)
            axes.plot(steps, middle, color=color, label=f"{result.opt}, lr {result.best[0].lr:.2g}")
            if len(losses) > 1:
                axes.fill_between(steps, losses.min(axis=0), losses.max(axis=0), color=color, alpha=0.18, linewidth=0)
        axes.set(title=problem.title, xlabel="optimizer steps", ylabel=problem.unit)
        if problem.log:
            axes.set(xscale="log", yscale="log")
            axes.set_xlim(left=1)
        else:
            _zoom(axes, shown)
        axes.legend(loc="lower left" if problem.log else "upper right")
    return figure


@styled
def lr_figure(problems: Sequence[SmallProblem], results: Sequence[Result]) -> Figure:
    """One panel per problem: the last measurement of every trial against its learning rate."""
    figure, grid = panels(len(problems), each=(5.2, 3.8))
    for problem, axes in zip(problems, grid, strict=True):
        for result in (result for result in results if result.problem == problem.name):
            finite = [run for run in result.trials if math.isfinite(run.loss)]
            color = optimizer_color(result.opt)
            axes.plot([run.lr for run in finite], [run.loss for run in finite], color=color, marker="o",
                      markersize=3.5, label=result.opt)  # fmt: skip
            axes.plot([result.best[0].lr], [result.best[0].loss], marker="o", markersize=8, color=color, mfc="none")
        axes.set(title=problem.title, xlabel="peak learning rate", ylabel=f"at the end: {problem.unit}")
        axes.set(xscale="log", yscale="log" if problem.log else "linear")
        axes.legend()
    return figure


@styled
def orthogonalisation_figure() -> Figure:
    """Singular values of a matrix with a spectrum from 1 to 1e-4 after each step of both orthogonalisations."""
    size, steps, draw = 96, 5, torch.Generator().manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(size, size, generator=draw).double()).Q for _ in range(2))
    x = left @ torch.diag(torch.logspace(0, -4, size, dtype=torch.float64)) @ right.T
    figure, grid = panels(2, columns=2, each=(5.0, 3.7))
    for axes, method in zip(grid, METHODS, strict=True):
        chain = coefficients(method, steps)
        for step, color in enumerate(shades(steps + 1)):
            iterated = iterate((x / x.norm())[None].clone(), chain[:step])[0] if step else x / x.norm()
            label = "input, norm 1" if step == 0 else f"after step {step}"
            axes.plot(range(1, size + 1), torch.linalg.svdvals(iterated), color=color, label=label)
        axes.axhline(1, color=SOFT, linestyle=":", linewidth=1)
        title = "Newton-Schulz" if method == "newton-schulz" else "Polar Express"
        axes.set(title=title, xlabel="rank among the singular values", ylabel="singular value", yscale="log")
        axes.set_ylim(5e-6, 3)
    grid[0].legend(loc="lower left")
    return figure


def _zoom(axes: Axes, results: Sequence[Result]) -> None:
    """Leave out the first fall from the logarithm of the vocabulary, but no optimizer's final loss."""
    finals = [loss for result in results for loss in result.losses if math.isfinite(loss)]
    lowest, first = min(finals), max(result.best[0].losses[0] for result in results)
    span = first - lowest
    axes.set_ylim(lowest - 0.02 * span, max(lowest + 0.5 * span, max(finals) + 0.05 * span))
