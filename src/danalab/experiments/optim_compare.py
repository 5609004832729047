"""All optimizers on all problems, side by side: pictures, a table and one page.

out/report.md                                  the table and the pictures
out/problems.png, lr.png, newton-schulz.png    the pictures (and .svg, -dark)
out/compare.json                               the numbers
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import replace
from statistics import fmean, geometric_mean
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from danalab.colors import optimizer_color, save_figure, shades
from danalab.errors import UserError
from danalab.experiments.drawing import panels, soft, zoom
from danalab.experiments.formats import Table, as_markdown
from danalab.experiments.problems import SmallProblem, get_problem
from danalab.experiments.settings import CompareConfig
from danalab.experiments.trials import Result, search, workers
from danalab.files import write_atomically, write_json
from danalab.hardware import available_cores
from danalab.optim.newton_schulz import METHODS, coefficients, iterate
from danalab.optimizer_facts import canonical_name

QUICK_TRIALS, QUICK_SHARE = 3, 10


def compare_optimizers(
    config: CompareConfig, report: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Search, repeat, draw and write everything into `config.out`; returns compare.json.

    UserError: an unknown problem, or no optimizer can take part.
    """
    if not config.opts or not config.problems:
        raise UserError("optim compare: name at least one optimizer and one problem")
    opts, names = list(dict.fromkeys(map(canonical_name, config.opts))), list(dict.fromkeys(config.problems))
    problems = [get_problem(name) for name in names]
    if config.quick:
        problems = [replace(each, steps=each.steps // QUICK_SHARE) for each in problems]
    trials, seeds = (QUICK_TRIALS, 1) if config.quick else (config.trials, config.seeds)
    config.out.mkdir(parents=True, exist_ok=True)  # before minutes of work
    tuned: dict[tuple[str, str], Result] = {}
    refused: dict[str, str] = {}
    with workers(config.jobs or available_cores()) as pool:
        searches: dict[Future[Result | str], tuple[str, str]] = {
            # The slowest first, so that the cores finish together.
            pool.submit(_outcome, problem, opt, trials, seeds): (problem.name, opt)
            for problem in reversed(problems)
            for opt in opts
        }
        for done in as_completed(searches):
            (name, opt), outcome = searches[done], done.result()
            if isinstance(outcome, Result):
                tuned[name, opt] = outcome
                words = f"{fmean(outcome.losses):10.4g}   lr {outcome.best[0].lr:.2g}"
            else:
                refused[f"{opt} on {name}"] = outcome
                words = f"left out: {outcome}"
            report(f"{name:<10} {opt:<18} {words}")
    if not tuned:
        raise UserError(f"optim compare: {'; '.join(f'{key}: {why}' for key, why in refused.items())}")
    results = [tuned[name, opt] for name in names for opt in opts if (name, opt) in tuned]
    return _write(config, problems, results, refused)


def _outcome(problem: SmallProblem, opt: str, trials: int, seeds: int) -> Result | str:
    """The result of a search, or why there is none."""
    try:
        return search(problem, opt, trials=trials, seeds=seeds)
    except (UserError, RuntimeError, TypeError) as error:  # the others go on
        return str(error)


def results_table(results: Sequence[dict[str, Any]]) -> Table:
    """A line for each of `Result.as_dict`, the best of each problem first."""
    rows = []
    for result in results:
        losses = [math.inf if loss is None else loss for loss in result["losses"]]
        spread = f"{min(losses):.4g} to {max(losses):.4g}" if len(losses) > 1 else "one seed"
        numbers = (f"{result['lr']:.2g}", f"{result['ms_per_step']:.2f}")
        rows.append((fmean(losses), result["problem"], result["optimizer"], spread, *numbers))
    headings = ("problem", "optimizer", "at the end", "lowest and highest", "best lr", "ms a step")
    ranked = sorted(rows, key=lambda row: (row[1], row[0]))
    return headings, [(problem, opt, f"{loss:.4g}", *rest) for loss, problem, opt, *rest in ranked]


def _write(
    config: CompareConfig, problems: list[SmallProblem], results: list[Result], refused: dict[str, str]
) -> dict[str, Any]:
    figures: dict[str, tuple[Callable[[], Figure], str]] = {
        "problems": (
            lambda: curves_figure(problems, results),
            "Each optimizer at its best learning rate; bands: seeds.",
        ),
        "lr": (lambda: lr_figure(problems, results), "Every trial of the search; circles: the best."),
        "newton-schulz": (
            orthogonalisation_figure,
            "What Muon does to a gradient: five steps of products take its singular values to 1, large ones first.",
        ),
    }
    found = {
        "problems": {each.name: {"measure": each.unit, "steps": each.steps} for each in problems},
        "results": [each.as_dict() for each in results],
        "refused": refused,
    }
    trials, seeds = len(results[0].trials), len(results[0].best)
    lines = [
        f"The same number of learning-rate trials for each optimizer ({trials}), by one rule from its usual rate on; "
        f"then runs at the best (seeds: {seeds}). One learning-rate schedule for all. Small problems show what an "
        "optimizer does, not which is best for a large model.",
        "Quick mode: runs are too short to draw conclusions." if config.quick else "",
        as_markdown(results_table(found["results"])),
        *(f"- {each.name}: {each.title}; {each.steps} steps; measured: {each.unit}" for each in problems),
        *(f"- left out: {key}. {why}" for key, why in refused.items()),
        "",
    ]
    for stem, (draw, caption) in figures.items():
        save_figure(draw, config.out / stem)
        lines += [f"![{caption}]({stem}.svg)", "", caption, ""]
    write_atomically(config.out / "report.md", "\n".join(lines))
    write_json(config.out / "compare.json", found)
    return found


def curves_figure(problems: list[SmallProblem], results: list[Result]) -> Figure:
    """One panel per problem: the measure against steps, each optimizer at its best learning rate.

    Lines are means over seeds (of the logarithm where the axis is logarithmic), bands reach from lowest to highest.
    """
    figure, grid = panels(len(problems), columns=1, each=(5.2, 3.8))
    for problem, axes in zip(problems, grid, strict=True):
        shown = [result for result in results if result.problem == problem.name]
        mean = geometric_mean if problem.log else fmean
        for result in sorted(shown, key=lambda result: mean(result.losses)):
            color = optimizer_color(result.opt)
            losses = np.array([run.losses for run in result.best if math.isfinite(run.loss)])
            steps = result.best[0].steps
            middle = np.exp(np.log(losses).mean(axis=0)) if problem.log else losses.mean(axis=0)
            axes.plot(steps, middle, color=color, label=f"{result.opt}, lr {result.best[0].lr:.2g}")
            axes.fill_between(
                steps, losses.min(axis=0), losses.max(axis=0), color=color, alpha=0.18, linewidth=0
            )
        axes.set(title=problem.title, xlabel="optimizer steps", ylabel=problem.unit)
        if problem.log:
            axes.set(xscale="log", yscale="log")
            axes.set_xlim(left=1)
        else:
            finals = [loss for result in shown for loss in result.losses if math.isfinite(loss)]
            zoom(axes, finals, max(result.best[0].losses[0] for result in shown))
        axes.legend(loc="lower left" if problem.log else "upper right")
    return figure


def lr_figure(problems: list[SmallProblem], results: list[Result]) -> Figure:
    """One panel per problem: the last measurement of every trial against its learning rate."""
    figure, grid = panels(len(problems), columns=1, each=(5.2, 3.8))
    for problem, axes in zip(problems, grid, strict=True):
        for result in (result for result in results if result.problem == problem.name):
            finite = [run for run in result.trials if math.isfinite(run.loss)]
            look: dict[str, Any] = {"color": optimizer_color(result.opt), "marker": "o"}
            axes.plot(
                [run.lr for run in finite],
                [run.loss for run in finite],
                markersize=3.5,
                label=result.opt,
                **look,
            )
            axes.plot(
                [result.best[0].lr], [result.best[0].loss], markersize=8, markerfacecolor="none", **look
            )
        axes.set(title=problem.title, xlabel="peak learning rate", ylabel=f"at the end: {problem.unit}")
        axes.set(xscale="log", yscale="log" if problem.log else "linear")
        axes.legend()
    return figure


def orthogonalisation_figure() -> Figure:
    """Singular values of a matrix with a spectrum from 1 to 1e-4 after each step of both orthogonalisations."""
    size, steps, draw = 96, 5, torch.Generator().manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(size, size, generator=draw).double()).Q for _ in range(2))
    x = left @ torch.diag(torch.logspace(0, -4, size, dtype=torch.float64)) @ right.T
    figure, grid = panels(2, columns=1, each=(5.0, 3.4))
    for axes, method in zip(grid, METHODS, strict=True):
        chain = coefficients(method, steps)
        for step, color in enumerate(shades(steps + 1)):
            iterated = iterate((x / x.norm())[None].clone(), chain[:step])[0] if step else x / x.norm()
            label = "input, norm 1" if step == 0 else f"after step {step}"
            axes.plot(range(1, size + 1), torch.linalg.svdvals(iterated), color=color, label=label)
        axes.axhline(1, color=soft(), linestyle=":", linewidth=1)
        title = "Newton-Schulz" if method == "newton-schulz" else "Polar Express"
        axes.set(title=title, xlabel="rank among the singular values", ylabel="singular value", yscale="log")
        axes.set_ylim(5e-6, 3)
    grid[0].legend(loc="lower left")
    return figure
