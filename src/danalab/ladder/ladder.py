"""A ladder: optimizers x sizes x horizons, tuned alike, then more seeds at the chosen settings.

`LadderPlan` defines it, `search` decides on the trials. With horizons, a rung (a size at a horizon) is finished before
the next one begins, so that a ladder that is stopped is a complete smaller one.
The number of trials is part of the result: the baseline must be tuned as much as the contender.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from danalab.files import write_json
from danalab.ladder.plan import LadderPlan, Rung
from danalab.ladder.preregistration import largest_rung, preregister, require_points
from danalab.ladder.runs.estimate import check_optimizers
from danalab.ladder.runs.grid import Cell
from danalab.ladder.runs.jobs import Failure
from danalab.ladder.runs.slurm_arrays import Cluster
from danalab.ladder.runs.sweep import run_sweep
from danalab.ladder.search import Choice, Search, together


@dataclass(frozen=True)
class LadderResult:
    """The result of a ladder."""

    folder: Path
    rows: list[dict[str, Any]]
    tuned: list[Choice]
    """Empty while runs of the first rungs are queued."""
    failures: list[Failure]
    queued: list[str] = field(default_factory=list)
    """Runs still at SLURM; call again for those that depend on them."""
    untuned: list[str] = field(default_factory=list)
    """Optimizers (at a rung) of which every trial failed, so that there are no further seeds."""


def run_ladder(
    folder: Path,
    plan: LadderPlan,
    *,
    executor: str = "pool",
    jobs: int | None = None,
    cluster: Cluster | None = None,
    registered: bool = False,
) -> LadderResult:
    """Run everything that is not finished; see the module's docstring.

    Args:
        registered: predict the largest rung when all others have ended, before it runs.
    """
    _check(folder, plan)
    rows: list[dict[str, Any]] = []
    tuned: list[Choice] = []
    untuned: list[str] = []
    queued: list[str] = []
    failures: dict[str, Failure] = {}
    losses: dict[str, float] = {}
    last = largest_rung(plan) if registered else None
    if registered:
        require_points(plan)
    groups = rung_groups(plan, last)
    for rungs in groups:
        if rungs == [last]:
            preregister(folder, plan, rows)
        places = [(opt, rung) for rung in rungs for opt in plan.opts]
        searches = [Search(plan, opt, rung, _centre(plan, opt, rung, tuned)) for opt, rung in places]
        steps = together(searches, losses)
        while (request := next(steps, None)) is not None:
            title, cells = request
            where = f"{rungs[0]}: " if len(groups) > 1 else ""
            found = run_sweep(folder, cells, executor=executor, jobs=jobs, cluster=cluster, title=where + title)
            rows = found.rows
            failures |= {each.job.folder.name: each for each in found.failures}
            queued += found.queued
            if {cell.name for cell in cells if cell.settings["seed"] == plan.seeds[0]} & set(found.queued):
                return LadderResult(folder, rows, tuned, [*failures.values()], queued, untuned)
            if refused := _failed_everywhere(cells, found.failures):
                return LadderResult(folder, rows, tuned, [*failures.values()], queued, [*untuned, *refused])
            losses |= {
                row["name"]: row["final_loss"]
                for row in rows
                if row["final_loss"] is not None and math.isfinite(row["final_loss"])
            }
        choices = [each.result for each in searches]
        tuned += [choice for choice in choices if choice is not None]
        untuned += [f"{opt} at {rung}" for (opt, rung), choice in zip(places, choices, strict=True) if choice is None]
        write_json(folder / "tuning.json", [asdict(each) for each in tuned])
    return LadderResult(folder, rows, tuned, [*failures.values()], queued, untuned)


def rung_groups(plan: LadderPlan, last: Rung | None = None) -> list[list[Rung]]:
    """Rungs that are trained side by side: with horizons one after another, otherwise all together.

    Args:
        last: a rung that waits for all others.
    """
    rungs = [rung for rung in plan.rungs() if rung != last]
    groups = [[rung] for rung in rungs] if plan.has_horizons else [rungs]
    return groups if last is None else [*(group for group in groups if group), [last]]


def _centre(plan: LadderPlan, opt: str, rung: Rung, tuned: Sequence[Choice]) -> float:
    """Factor on the law's rate from which the trials start: the best at the rung before, else the plan's start."""
    before = plan.rung_before(rung)
    for each in tuned:
        if before is not None and (each.opt, each.size, each.horizon) == (opt, before.size, before.horizon):
            return each.multiplier
    return plan.start.get(opt, 1.0)


def _check(folder: Path, plan: LadderPlan) -> None:
    """Refuse settings out of range, and optimizers that cannot be built, before the first rung begins."""
    cells = [cell for rung in plan.rungs() for cells in plan.planned(rung).values() for cell in cells]
    for cell in cells:
        cell.config(folder / "runs" / cell.name)
    check_optimizers(cells)


def _failed_everywhere(cells: Sequence[Cell], failures: Sequence[Failure]) -> list[str]:
    """Optimizers of which every run of several failed, and none by a loss that was not finite: more would fail too."""
    failed = {each.job.folder.name for each in failures if not each.job.has_diverged()}
    runs: dict[str, list[str]] = defaultdict(list)
    for cell in cells:
        runs[cell.label or cell.settings["opt"]].append(cell.name)
    return [opt for opt, names in runs.items() if len(names) > 1 and failed.issuperset(names)]
