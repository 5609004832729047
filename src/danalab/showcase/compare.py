"""All optimizers on all problems, side by side: searches in parallel, pictures, a table and one page.

out/index.html                                 everything on one page
out/problems.png, lr.png, newton-schulz.png    the pictures (and .svg, .pdf)
out/table.md, compare.json                     the numbers
"""

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from danalab.data.environment import available_cores
from danalab.errors import UserError
from danalab.files import write_atomically, write_json
from danalab.optim import optimizer_spec
from danalab.showcase.problems import Problem, problem
from danalab.showcase.settings import CompareConfig
from danalab.showcase.trials import Result, search


@dataclass(frozen=True)
class Comparison:
    """The results."""

    problems: tuple[Problem, ...]
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

    Raises:
        UserError: an unknown optimizer or problem, numbers that make no comparison, or no optimizer can take part.
    """
    if not config.opts or not config.problems:
        raise UserError("optim compare: name at least one optimizer and one problem")
    opts = list(dict.fromkeys(optimizer_spec(opt).name for opt in config.opts))
    problems = tuple(problem(name, config.quick) for name in dict.fromkeys(config.problems))
    trials, seeds = (min(config.trials, 3), 1) if config.quick else (config.trials, config.seeds)
    config.out.mkdir(parents=True, exist_ok=True)  # before minutes of work
    # The slowest first, so that the cores finish together.
    work = [(each.name, opt, trials, seeds, config.quick) for each in reversed(problems) for opt in opts]
    found: dict[tuple[str, str], Result] = {}
    refused: dict[str, str] = {}
    for name, opt, outcome in _run_all(work, config.jobs, report):
        if isinstance(outcome, Result):
            found[name, opt] = outcome
        else:
            refused[f"{opt} on {name}"] = outcome
    if not found:
        raise UserError(f"optim compare: {'; '.join(f'{key}: {why}' for key, why in refused.items())}")
    results = tuple(found[each.name, opt] for each in problems for opt in opts if (each.name, opt) in found)
    return _write(config, problems, results, refused)


Outcome = tuple[str, str, Result | str]
"""Problem, optimizer, and the result or why there is none."""


def _run_all(work: Sequence[tuple], jobs: int | None, report: Callable[[str], None]) -> list[Outcome]:
    jobs = min(jobs or available_cores(), len(work))
    if jobs == 1:
        return [_reported(_search(*each), report) for each in work]
    # Fresh processes: threads of torch do not survive a fork.
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_one_thread) as pool:
        pending = [pool.submit(_search, *each) for each in work]
        try:
            return [_reported(done.result(), report) for done in as_completed(pending)]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _search(name: str, opt: str, trials: int, seeds: int, quick: bool) -> Outcome:
    try:
        return name, opt, search(problem(name, quick), opt, trials=trials, seeds=seeds)
    except UserError as error:  # the others go on
        return name, opt, str(error)


def _reported(outcome: Outcome, report: Callable[[str], None]) -> Outcome:
    name, opt, result = outcome
    if isinstance(result, Result):
        report(f"{name:<10} {opt:<18} {fmean(result.losses):10.4g}   lr {result.best[0].lr:.2g}")
    else:
        report(f"{name:<10} {opt:<18} left out: {result}")
    return outcome


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


HEADINGS = ("problem", "optimizer", "at the end", "lowest and highest", "best lr", "ms a step")


def table_rows(comparison: Comparison | Sequence[Result]) -> list[tuple[str, ...]]:
    """Table rows as text, the best of each problem first."""
    results = comparison.results if isinstance(comparison, Comparison) else comparison
    rows: list[tuple[str, ...]] = []
    for name in dict.fromkeys(result.problem for result in results):
        shown = [result for result in results if result.problem == name]
        for result in sorted(shown, key=lambda result: fmean(result.losses)):
            spread = f"{min(result.losses):.4g} to {max(result.losses):.4g}" if len(result.losses) > 1 else "one seed"
            best = result.best[0]
            rows.append(
                (name, result.opt, f"{fmean(result.losses):.4g}", spread, f"{best.lr:.2g}", f"{best.ms_per_step:.2f}")
            )
    return rows


def _write(
    config: CompareConfig, problems: tuple[Problem, ...], results: tuple[Result, ...], refused: dict[str, str]
) -> Comparison:
    from danalab.report.figures.training import save_figure
    from danalab.report.page.page import Page
    from danalab.report.tables.formats import as_markdown
    from danalab.showcase.figures import curves_figure, lr_figure, orthogonalisation_figure

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
        files += save_figure(figure, config.out / stem)
        page.figure(figure, caption)
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
        f"The same number of learning-rate trials for each optimizer ({trials}), found by one rule from its usual one"
        f" on; then {seeds} runs at the best. One learning-rate schedule for all. Small problems show what an optimizer"
        f" does, not which is best for a large model.{quick}"
    )
