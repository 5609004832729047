"""A ladder: optimizers x sizes x horizons, tuned alike, then more seeds at the best settings.

    rates    every multiplier of the learning rate, first seed
    further  one multiplier after another: beyond the outermost where that is best; with `trials` otherwise between the
             best and its better neighbour, so that every optimizer has the same number
    dials    the other values of each dial at the best rate, one dial after another
    seeds    the best settings again with the other seeds

`LadderPlan` defines it. With horizons, a rung (a size at a horizon) is finished before the next one begins, so that a
ladder that is stopped is a complete smaller one. The number of trials is part of the result: the baseline must be tuned
as much as the contender.
"""

import math
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
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


@dataclass(frozen=True)
class TunedRung:
    """The result of tuning an optimizer on a rung."""

    opt: str
    size: dict[str, Any]
    multiplier: float
    trials: int
    at_edge: bool
    """The best multiplier is the outermost one tried: a better one may lie beyond."""
    losses: dict[str, float | None]
    """Multiplier -> final loss of its trial; None: the run failed."""
    horizon: float | None = None
    dials: dict[str, Any] | None = None
    """Best values of the dials; None: there are none."""
    gains: dict[str, float] | None = None
    """Dial -> by how much its best value lowered the loss [nats/token]; None: there are no dials."""

    @property
    def loss(self) -> float:
        """Final loss of the best trial [nats/token]."""
        best = self.losses[f"{self.multiplier:g}"]
        assert best is not None
        return best - sum((self.gains or {}).values())


@dataclass
class LadderResult:
    """The result of a ladder."""

    folder: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    tuned: list[TunedRung] = field(default_factory=list)
    """Empty while runs of the first rungs are queued."""
    failures: list[Failure] = field(default_factory=list)
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
    """Run everything that is not finished.

    Args:
        registered: predict the largest rung when all others have ended, before it runs.
    """
    _check(folder, plan)
    if registered:
        require_points(plan)
    last = largest_rung(plan) if registered else None
    result = LadderResult(folder)
    failures: dict[str, Failure] = {}
    losses: dict[str, float] = {}
    groups = rung_groups(plan, last)
    for rungs in groups:
        if rungs == [last]:
            preregister(folder, plan, result.rows)
        places = [(opt, rung) for rung in rungs for opt in plan.opts]
        searches = [RungSearch(plan, opt, rung, _centre(plan, opt, rung, result.tuned)) for opt, rung in places]
        for title, cells in together(searches, losses):
            where = f"{rungs[0]}: " if len(groups) > 1 else ""
            sweep = run_sweep(folder, cells, executor=executor, jobs=jobs, cluster=cluster, title=where + title)
            failures |= {each.job.folder.name: each for each in sweep.failures}
            result.rows, result.failures = sweep.rows, [*failures.values()]
            result.queued += sweep.queued
            if {cell.name for cell in cells if cell.settings["seed"] == plan.seeds[0]} & set(sweep.queued):
                return result  # what follows depends on these trials
            if refused := _failed_everywhere(cells, sweep.failures):
                result.untuned += refused
                return result
            losses |= {
                row["name"]: row["final_loss"]
                for row in sweep.rows
                if row["final_loss"] is not None and math.isfinite(row["final_loss"])
            }
        result.tuned += [each.result for each in searches if each.result is not None]
        result.untuned += [
            f"{opt} at {rung}" for (opt, rung), each in zip(places, searches, strict=True) if each.result is None
        ]
        write_json(folder / "tuning.json", [asdict(each) for each in result.tuned])
    return result


def rung_groups(plan: LadderPlan, last: Rung | None = None) -> list[list[Rung]]:
    """Rungs that are trained side by side: with horizons one after another, otherwise all together.

    Args:
        last: a rung that waits for all others.
    """
    rungs = [rung for rung in plan.rungs() if rung != last]
    groups = [[rung] for rung in rungs] if plan.has_horizons else [rungs]
    return groups if last is None else [*(group for group in groups if group), [last]]


class RungSearch:
    """The tuning of an optimizer on a rung: which runs to train next, given the losses so far.

    Args:
        centre: factor on the law's rate that the multipliers multiply.
    """

    def __init__(self, plan: LadderPlan, opt: str, rung: Rung, centre: float):
        self._steps = _search(plan, opt, rung, centre)
        self.request: tuple[str, list[Cell]] | None = next(self._steps)
        """What the next runs are, and the runs; None at the end."""
        self.result: TunedRung | None = None
        """None before the end, and where every trial failed."""

    def advance(self, losses: Mapping[str, float]) -> None:
        """Take the final losses of the requested runs, by name; those that are not there have failed."""
        assert self.request is not None
        try:
            self.request = self._steps.send({cell.name: losses.get(cell.name, math.inf) for cell in self.request[1]})
        except StopIteration as end:
            self.request, self.result = None, end.value


def together(searches: Sequence[RungSearch], losses: Mapping[str, float]) -> Iterator[tuple[str, list[Cell]]]:
    """The next runs of all searches, with what they are, until the last search ends.

    Args:
        losses: final loss of each run by name; the caller adds those of the runs that it was given.
    """
    while requests := [each.request for each in searches if each.request is not None]:
        if cells := [cell for _, cells in requests for cell in cells]:
            yield ", ".join(dict.fromkeys(title for title, _ in requests)), cells
        for each in searches:
            if each.request is not None:
                each.advance(losses)


def _search(
    plan: LadderPlan, opt: str, rung: Rung, centre: float
) -> Generator[tuple[str, list[Cell]], Mapping[str, float], TunedRung | None]:
    first = plan.seeds[0]
    tried: dict[float, float] = {}
    wanted = [rounded(centre * float(m)) for m in sorted(plan.multipliers)]
    left = (plan.extensions if plan.trials is None else plan.trials - len(wanted)) if len(wanted) > 1 else 0
    title = "learning-rate trials"
    while wanted:
        cells = [plan.cell(opt, rung, m, first) for m in wanted]
        trained = yield title, cells
        tried |= {m: trained[cell.name] for m, cell in zip(wanted, cells, strict=True)}
        more = next_multiplier(tried, refine=plan.trials is not None) if left else None
        wanted, left, title = [] if more is None else [more], left - 1, "further learning rates"
    multiplier = min(sorted(tried), key=tried.__getitem__)
    best = tried[multiplier]
    if math.isinf(best):
        return None
    dials, gains, trials = {}, {}, len(tried)
    for name, (default, *others) in plan.dials_of(opt).items():
        cells = [plan.cell(opt, rung, multiplier, first, {**dials, name: value}) for value in others]
        trained = yield f"trials of {name}", cells
        losses = [best, *(trained[cell.name] for cell in cells)]
        dials[name] = (default, *others)[losses.index(min(losses))]
        gains[name], best, trials = best - min(losses), min(losses), trials + len(others)
    yield "more seeds", [plan.cell(opt, rung, multiplier, seed, dials) for seed in plan.seeds[1:]]
    return TunedRung(
        opt, dict(rung.size), multiplier, trials,
        at_edge=len(tried) > 1 and multiplier in (min(tried), max(tried)),
        losses={f"{m:g}": None if math.isinf(tried[m]) else tried[m] for m in sorted(tried)},
        horizon=rung.horizon, dials=dials or None, gains=gains or None,
    )  # fmt: skip


def next_multiplier(tried: Mapping[float, float], *, refine: bool) -> float | None:
    """The next multiplier: beyond the outermost where that is best, at the distance of its neighbour.

    Args:
        tried: multiplier -> final loss, two or more.
        refine: where the best lies inside, the geometric mean of it and its better neighbour; otherwise None.
    """
    multipliers = sorted(tried)
    losses = [tried[m] for m in multipliers]
    best = losses.index(min(losses))
    if math.isinf(losses[best]):
        return None
    if best == 0:
        return rounded(multipliers[0] ** 2 / multipliers[1])
    if best == len(losses) - 1:
        return rounded(multipliers[-1] ** 2 / multipliers[-2])
    if not refine:
        return None
    neighbour = min(best - 1, best + 1, key=losses.__getitem__)
    between = rounded(math.sqrt(multipliers[best] * multipliers[neighbour]))
    return None if between in tried else between


def rounded(multiplier: float) -> float:
    """Four significant digits: enough for a rate, and short in names of runs."""
    return float(f"{multiplier:.4g}")


def _centre(plan: LadderPlan, opt: str, rung: Rung, tuned: Sequence[TunedRung]) -> float:
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
