"""A ladder: optimizers x sizes x horizons x batches, tuned alike, then more seeds at the best settings.

    rates    every multiplier of the learning rate, first seed
    further  one multiplier after another: beyond the outermost where that is best; with `trials` otherwise between the
             best and its better neighbour, so that every optimizer has the same number
    dials    the other values of each dial at the best rate, one dial after another
    seeds    the best settings again with the other seeds

A trial is a run with the first seed, or with each of the first `trial_seeds`: then its loss is their mean.

`LadderPlan` defines it. With horizons or batches, an optimizer's trials on a rung (a size at both) begin when its best
setting on the rung before is known. Runs of earlier rungs go first, so that a ladder that is stopped is nearly a
complete smaller one. The number of trials is part of the result: the baseline must be tuned as much as the contender.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from danalab.files import write_json
from danalab.ladder.plan import PROCEDURES, LadderPlan, Rung
from danalab.scaling.rate_search import next_rate, rounded
from danalab.sweep.estimate import check_optimizers
from danalab.sweep.executors import Cluster
from danalab.sweep.grid import Cell
from danalab.sweep.rows import is_usable
from danalab.sweep.run import Sweep, SweepResult


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
    batch: int | None = None
    dials: dict[str, Any] | None = None
    """Best values of the dials; None: there are none."""
    gains: dict[str, float] | None = None
    """Dial -> by how much its best value lowered the loss [nats/token]; None: there are no dials."""

    @property
    def rung(self) -> Rung:
        """Where it was tuned."""
        return Rung(self.size, self.horizon, self.batch)

    @property
    def loss(self) -> float:
        """Final loss of the best trial [nats/token]."""
        best = self.losses[f"{self.multiplier:g}"]
        assert best is not None
        return best - sum((self.gains or {}).values())


@dataclass(frozen=True)
class LadderResult(SweepResult):
    """The result of a ladder."""

    tuned: list[TunedRung]
    """Empty while runs of the first rungs are queued."""
    untuned: list[str]
    """Optimizers (at a rung) of which every trial failed, so that there are no further seeds."""


def run_ladder(
    folder: Path,
    plan: LadderPlan,
    *,
    executor: str = "pool",
    jobs: int | None = None,
    cluster: Cluster | None = None,
    procedures: Sequence[str] = (),
) -> LadderResult:
    """Run everything that is not finished; `procedures` of `PROCEDURES` beside it, as that of the plan's `merge`."""
    _check(folder, plan)
    beside = [PROCEDURES.get(name)(plan) for name in (*([] if plan.merge is None else ["merge"]), *procedures)]
    last = next((each.last_rung for each in beside if each.last_rung is not None), None)
    search = LadderSearch(plan, last)
    tuned: list[TunedRung] = []
    refused: list[str] = []
    losses: dict[str, float] = {}
    ended: set[str] = set()
    with Sweep(folder, executor, jobs=jobs, cluster=cluster) as sweep:
        while not refused:
            title, cells, places = search.next_runs(losses, ended)
            if last is not None and any(place[0] == search.last_group for place in places):
                for each in beside:
                    each.before_last(folder, sweep.rows)
            if cells:
                sweep.start(cells, title, places)
            if search.results != tuned:
                tuned = search.results
                write_json(folder / "tuning.json", [asdict(each) for each in tuned])
            now = sweep.ended()
            if not now:
                break
            ended |= set(now)
            losses |= {row["name"]: row["final_loss"] for row in sweep.rows if is_usable(row)}
            for each in beside:
                losses |= each.losses(folder, sweep.rows)
            failed = {name for name, each in sweep.failures.items() if not each.job.has_diverged()}
            refused = search.refused(failed)
        while sweep.ended():  # what runs beside an optimizer of which every run fails
            pass
        return LadderResult(**sweep.result().__dict__, tuned=tuned, untuned=refused + search.untuned)


class LadderSearch:
    """The tuning of all optimizers on all rungs: which runs to train next, given those that have ended.

    An optimizer's search on a rung begins when its search on the rung before has a best setting. Only the rung `last`
    waits for all others.
    """

    def __init__(self, plan: LadderPlan, last: Rung | None = None):
        self._plan, self._last = plan, last
        rungs = [rung for rung in plan.rungs() if rung != last] + ([] if last is None else [last])
        self._where = [(opt, rung) for rung in rungs for opt in plan.opts]
        self._groups = [rungs.index(rung) if plan.has_steps or rung == last else 0 for _, rung in self._where]
        self.last_group = len(rungs) - 1
        self._searches: dict[int, RungSearch] = {}
        self._started: dict[int, set[str]] = defaultdict(set)

    def next_runs(
        self, losses: Mapping[str, float], ended: Collection[str]
    ) -> tuple[str, list[Cell], list[tuple[int, ...]]]:
        """The runs that can begin now and were not returned before: (what they are, the runs, their places among all).

        Rows are in the order of places, that of a ladder whose searches advance together, rung by rung. A run of
        `ended` without a final loss in `losses` has failed.
        """
        titles, cells, places = [], [], []
        for i, (opt, rung) in enumerate(self._where):
            if i not in self._searches:
                if not self._is_due(i):
                    continue
                best = None if (before := self._before(i)) is None else before.result
                centre = self._plan.start.get(opt, 1.0) if best is None else best.multiplier
                self._searches[i] = RungSearch(self._plan, opt, rung, centre)
            search = self._searches[i]
            while not search.is_over and search.names.issubset(ended):
                search.advance(losses)
            if search.is_over or search.names.issubset(self._started[i]):
                continue
            titles.append(f"{rung}: {search.title}" if self._plan.has_steps else search.title)
            cells += search.cells
            places += [(self._groups[i], search.rounds, i)] * len(search.cells)
            self._started[i] |= search.names
        return ", ".join(dict.fromkeys(titles)), cells, places

    def _is_due(self, i: int) -> bool:
        rung = self._where[i][1]
        if rung == self._last:
            others = [j for j, (_, other) in enumerate(self._where) if other != rung]
            return all(j in self._searches and self._searches[j].is_over for j in others)
        if self._plan.rung_before(rung) is None:
            return True
        search = self._before(i)
        return search is not None and (search.result is not None or search.is_over)

    def _before(self, i: int) -> "RungSearch | None":
        """The search whose best rate the trials start from; None where there is none, or it has not begun."""
        opt, rung = self._where[i]
        before = self._plan.rung_before(rung)
        return None if before is None else self._searches.get(self._where.index((opt, before)))

    @property
    def results(self) -> list[TunedRung]:
        """The best settings that are known."""
        found = [self._searches[i].result for i in sorted(self._searches)]
        return [each for each in found if each is not None]

    @property
    def untuned(self) -> list[str]:
        """Optimizers (at a rung) of which every trial failed."""
        ended = [i for i, each in sorted(self._searches.items()) if each.is_over and each.result is None]
        return ["{} at {}".format(*self._where[i]) for i in ended]

    def refused(self, failed: Collection[str]) -> list[str]:
        """Optimizers of which every run of several failed (not by loss) on rungs tuned together: more would too."""
        runs: dict[tuple[int, str], set[str]] = defaultdict(set)
        for i, names in self._started.items():
            runs[self._groups[i], self._where[i][0]] |= names
        return [opt for (_, opt), names in runs.items() if len(names) > 1 and names.issubset(failed)]


class RungSearch:
    """What to train next to tune an optimizer on a rung; multipliers multiply `centre` x the law's rate."""

    def __init__(self, plan: LadderPlan, opt: str, rung: Rung, centre: float):
        self._steps = _search(plan, opt, rung, centre)
        self.title, self.cells, self.result = next(self._steps)
        """The next runs, and the best settings: None before they are known, and where every trial failed."""
        self.rounds, self.is_over = 0, False

    @property
    def names(self) -> set[str]:
        """Names of the next runs."""
        return {cell.name for cell in self.cells}

    def advance(self, losses: Mapping[str, float]) -> None:
        """Take the final losses of these runs, by name; those that are not there have failed."""
        self.rounds += 1
        try:
            self.title, self.cells, self.result = self._steps.send({n: losses.get(n, math.inf) for n in self.names})
        except StopIteration:
            self.is_over = True


def _search(
    plan: LadderPlan, opt: str, rung: Rung, centre: float
) -> Generator[tuple[str, list[Cell], TunedRung | None], Mapping[str, float]]:
    """(what they are, the runs, the result) of each round of a search; only the last has a result."""
    seeds, further = plan.seeds[: plan.trial_seeds], plan.seeds[plan.trial_seeds :]
    tried: dict[float, float] = {}
    wanted = [rounded(centre * float(m)) for m in sorted(plan.multipliers)]
    left = (plan.extensions if plan.trials is None else plan.trials - len(wanted)) if len(wanted) > 1 else 0
    title = "learning-rate trials"
    while wanted:
        cells = [[plan.cell(opt, rung, m, seed) for seed in seeds] for m in wanted]
        trained = yield title, [*itertools.chain(*cells)], None
        tried |= {m: _mean_loss(runs, trained) for m, runs in zip(wanted, cells, strict=True)}
        more = next_rate(tried, refine=plan.trials is not None) if left else None
        wanted, left, title = [] if more is None else [more], left - 1, "further learning rates"
    multiplier = min(sorted(tried), key=tried.__getitem__)
    best = tried[multiplier]
    if math.isinf(best):
        return
    dials, gains, trials = {}, {}, len(tried)
    for name, (default, *others) in plan.dials_of(opt).items():
        chosen = [{**dials, name: value} for value in others]
        cells = [[plan.cell(opt, rung, multiplier, seed, each) for seed in seeds] for each in chosen]
        trained = yield f"trials of {name}", [*itertools.chain(*cells)], None
        losses = [best, *(_mean_loss(runs, trained) for runs in cells)]
        dials[name] = (default, *others)[losses.index(min(losses))]
        gains[name], best, trials = best - min(losses), min(losses), trials + len(others)
    tuned = TunedRung(
        opt, dict(rung.size), multiplier, trials,
        at_edge=len(tried) > 1 and multiplier in (min(tried), max(tried)),
        losses={f"{m:g}": None if math.isinf(tried[m]) else tried[m] for m in sorted(tried)},
        horizon=rung.horizon, batch=rung.batch, dials=dials or None, gains=gains or None,
    )  # fmt: skip
    yield "more seeds", [plan.cell(opt, rung, multiplier, seed, dials) for seed in further], tuned


def _mean_loss(runs: Sequence[Cell], losses: Mapping[str, float]) -> float:
    """Loss of a trial: the mean over its seeds, infinite where one failed."""
    return sum(losses[cell.name] for cell in runs) / len(runs)


def _check(folder: Path, plan: LadderPlan) -> None:
    """Refuse settings out of range, and optimizers that cannot be built, before the first rung begins."""
    cells = [cell for rung in plan.rungs() for cells in plan.planned(rung).values() for cell in cells]
    for cell in cells:
        cell.config(folder / "runs" / cell.name)
    check_optimizers(cells)
