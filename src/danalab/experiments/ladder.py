"""A ladder: optimizers x sizes x horizons x batches, tuned alike, then more seeds at the best settings.

    rates    every multiplier of the learning rate; further ones while the best is the outermost
    dials    the other values of each dial at the best rate; a number at an edge is followed like the rate
    again    after a dial has moved, rate and dials are searched around the new best, until nothing moves
    refine   trials that are left go between the best rate and its better neighbour: every optimizer has as many
    seeds    the best settings with the other seeds

A trial is a run with the first seed, or with each of the first `trial_seeds`: then its loss is their mean. With
horizons or batches, trials on a rung (a size at both) are centred on the best rate of the rung before.
"""

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from danalab.experiments.cells import Cell
from danalab.experiments.estimate import check_optimizers
from danalab.experiments.plan import LadderPlan, Rung
from danalab.experiments.runs import Queued, Runner
from danalab.files import write_json
from danalab.scaling.rate_search import rounded

RATE = "lr_multiplier"
Settings = dict[str, Any]
"""`RATE` and the dials of a trial."""
Losses = Callable[[Sequence[Settings]], list[float]]
"""Settings -> final loss of each; infinite where it diverged or failed."""


@dataclass(frozen=True)
class TunedRung:
    """The result of tuning an optimizer on a rung."""

    opt: str
    rung: str
    settings: Settings
    """The best multiplier and dials."""
    loss: float
    """Of the best trial [nats/token]."""
    trials: int
    edges: list[str]
    """Dials, the multiplier among them, whose best value is an outermost one tried: a better one may lie beyond."""
    tried: list[tuple[Settings, float | None]]
    """Every trial and its loss; None: it failed."""


class Search:
    """The trials of one optimizer on one rung, `most` at most."""

    def __init__(self, losses: Losses, start: Settings, most: int):
        self._losses, self.best, self.most = losses, start, most
        self.tried: dict[str, tuple[Settings, float]] = {}

    @property
    def left(self) -> int:
        """Trials that may still be made."""
        return self.most - len(self.tried)

    def try_values(self, dial: str, values: Sequence[Any]) -> None:
        """Try the best settings with these values of a dial."""
        wanted = {json.dumps(each): each for each in ({**self.best, dial: value} for value in values)}
        new = {key: each for key, each in wanted.items() if key not in self.tried}
        new = dict(itertools.islice(new.items(), self.left))
        if new:
            losses = self._losses([*new.values()])
            self.tried |= {key: (each, loss) for (key, each), loss in zip(new.items(), losses, strict=True)}
        self.best = min(self.tried.values(), key=lambda trial: trial[1])[0]

    def line(self, dial: str) -> dict[Any, float]:
        """Value -> loss of the trials that differ from the best in one dial, by value."""
        rest = {key: value for key, value in self.best.items() if key != dial}
        same = [(each[dial], loss) for each, loss in self.tried.values() if rest.items() <= each.items()]
        numbers = all(
            isinstance(value, (int, float)) and value > 0 and value is not True for value, _ in same
        )
        return dict(sorted(same)) if numbers else {}

    def is_at_edge(self, dial: str) -> bool:
        """Whether the best value is an outermost one of several positive numbers."""
        known = [*self.line(dial)]
        return len(known) > 1 and self.best[dial] in (known[0], known[-1])

    def follow(self, dial: str) -> None:
        """Try values beyond the outermost one while that is best, at the distance of its neighbour."""
        while self.left and self.is_at_edge(dial) and math.isfinite(self.loss):
            known = [*self.line(dial)]
            beside = known[1] if self.best[dial] == known[0] else known[-2]
            self.try_values(dial, [rounded(self.best[dial] ** 2 / beside)])

    def refine(self, dial: str) -> bool:
        """Try the geometric mean of the best value and its better neighbour; False: there is none."""
        line = self.line(dial)
        known = [*line]
        at = known.index(self.best[dial]) if len(known) > 1 else 0
        beside = [known[i] for i in (at - 1, at + 1) if 0 <= i < len(known)]
        if not beside or math.isinf(self.loss):
            return False
        before = len(self.tried)
        self.try_values(dial, [rounded(math.sqrt(self.best[dial] * min(beside, key=line.__getitem__)))])
        return len(self.tried) > before

    @property
    def loss(self) -> float:
        """Loss of the best."""
        return min(loss for _, loss in self.tried.values())


def search(
    losses: Losses, multipliers: Sequence[float], dials: Mapping[str, Sequence[Any]], most: int
) -> Search:
    """The best multiplier and dials, by exactly `most` trials where there are so many to make."""
    middle = sorted(multipliers)[len(multipliers) // 2]
    found = Search(losses, {RATE: middle, **{name: values[0] for name, values in dials.items()}}, most)
    axes: dict[str, Sequence[Any]] = {RATE: multipliers, **dials}
    while True:
        before = found.best
        for name, values in axes.items():
            found.try_values(name, values)
            found.follow(name)
        if not found.left or found.best == before or math.isinf(found.loss):
            break
        best, first = found.best[RATE], sorted(multipliers)
        spacing = first[1] / first[0] if len(first) > 1 else 1.0
        axes[RATE] = [
            rounded(best / spacing),
            best,
            rounded(best * spacing),
        ]  # and the dials again, at what is best
    while found.left and found.refine(RATE):
        pass
    return found


def run_ladder(plan: LadderPlan, runner: Runner) -> tuple[list[TunedRung], list[str]]:
    """Run everything that is not finished; optimizers side by side, each from rung to rung.

    Returns:
        The tuned rungs; and optimizers (at a rung) of which every trial failed, so that there are no further seeds.
    """
    rungs = plan.rungs()
    cells = [cell for rung in rungs for cells in plan.planned(rung).values() for cell in cells]
    runner.check(cells)
    check_optimizers(cells)
    with runner, ThreadPoolExecutor(len(plan.opts)) as threads:
        try:
            ended = [*threads.map(lambda opt: _tune_optimizer(plan, opt, runner), plan.opts)]
        except BaseException:
            runner.stop()
            raise
    tuned = [each for found, _ in ended for each in found]
    write_json(runner.folder / "tuning.json", [asdict(each) for each in tuned])
    return tuned, [words for _, failed in ended for words in failed]


def _tune_optimizer(plan: LadderPlan, opt: str, runner: Runner) -> tuple[list[TunedRung], list[str]]:
    """(tuned rungs, rungs of which every trial failed) of an optimizer, from rung to rung."""
    tuned: dict[Rung, TunedRung] = {}
    failed: list[str] = []
    try:
        for place, rung in enumerate(plan.rungs()):
            before = tuned.get(plan.rung_before(rung))  # pyright: ignore[reportArgumentType]
            centre = plan.start.get(opt, 1.0) if before is None else before.settings[RATE]
            found = _tune(plan, opt, rung, centre, runner, (place, plan.opts.index(opt)))
            if found is None:
                failed.append(f"{opt} at {rung}")
            else:
                tuned[rung] = found
    except Queued:  # what depends on these runs waits for the next call
        pass
    return [*tuned.values()], failed


def _tune(
    plan: LadderPlan, opt: str, rung: Rung, centre: float, runner: Runner, place: tuple[int, int]
) -> TunedRung | None:
    """Trials, then more seeds at the best settings; None where every trial failed."""

    def cell(settings: Settings, seed: int) -> Cell:
        return plan.cell(
            opt, rung, settings[RATE], seed, {k: v for k, v in settings.items() if k != RATE}, place
        )

    def losses(trials: Sequence[Settings]) -> list[float]:
        seeds = plan.seeds[: plan.trial_seeds]
        runs = [[cell(each, seed) for seed in seeds] for each in trials]
        ended = runner.train([*itertools.chain(*runs)], f"{opt} at {rung}")
        return [sum(ended[run.name] for run in each) / len(each) for each in runs]

    multipliers = [rounded(centre * m) for m in plan.multipliers]
    found = search(losses, multipliers, plan.dials_of(opt), plan.trials_of(opt))
    if math.isinf(found.loss):
        return None
    runner.train(
        [cell(found.best, seed) for seed in plan.seeds[plan.trial_seeds :]], f"{opt} at {rung}, more seeds"
    )
    edges = [name for name in found.best if found.is_at_edge(name)]
    tried = [(settings, None if math.isinf(loss) else loss) for settings, loss in found.tried.values()]
    return TunedRung(opt, str(rung), found.best, found.loss, len(tried), edges, tried)
