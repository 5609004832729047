"""The tuning of one optimizer on one rung of a ladder: which runs to train next, given the losses so far.

rates    every multiplier, first seed
further  one multiplier after another: beyond the outermost where that is best; with `trials` otherwise between the
         best and its better neighbour, so that every optimizer has the same number
dials    the other values of each dial at the best rate, one dial after another
seeds    the best settings again with the other seeds
"""

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from danalab.ladder.plan import LadderPlan, Rung
from danalab.ladder.runs.grid import Cell

Request = tuple[str, list[Cell]]
"""(what they are, runs to train)."""


@dataclass(frozen=True)
class Choice:
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
    worth: dict[str, float] | None = None
    """Dial -> what it lowered the loss by [nats a token]; None: there are no dials."""

    @property
    def loss(self) -> float:
        """Final loss of the best trial [nats a token]."""
        best = self.losses[f"{self.multiplier:g}"]
        assert best is not None
        return best - sum((self.worth or {}).values())


class Search:
    """The tuning of an optimizer on a rung.

    Args:
        centre: factor on the law's rate that the multipliers multiply.
    """

    def __init__(self, plan: LadderPlan, opt: str, rung: Rung, centre: float):
        self._steps = _search(plan, opt, rung, centre)
        self._request: Request | None = next(self._steps)
        self.result: Choice | None = None
        """The choice; None before the end, and where every trial failed."""

    @property
    def request(self) -> Request | None:
        """The runs to train next; None at the end."""
        return self._request

    def advance(self, losses: Mapping[str, float]) -> None:
        """Take the final losses of these runs, by name; those that are not there have failed."""
        assert self._request is not None
        found = {cell.name: losses.get(cell.name, math.inf) for cell in self._request[1]}
        try:
            self._request = self._steps.send(found)
        except StopIteration as end:
            self._request, self.result = None, end.value


def together(searches: Sequence[Search], losses: Mapping[str, float]) -> Iterator[Request]:
    """All next runs of several searches at once, until the last one ends.

    Args:
        losses: final loss of each run by name; the caller adds those of the runs that it was given.
    """
    while open_ := [each for each in searches if each.request is not None]:
        requests = [each.request for each in open_ if each.request is not None]
        cells = [cell for _, cells in requests for cell in cells]
        if cells:
            yield ", ".join(dict.fromkeys(title for title, _ in requests)), cells
        for each in open_:
            each.advance(losses)


def _search(
    plan: LadderPlan, opt: str, rung: Rung, centre: float
) -> Generator[Request, Mapping[str, float], Choice | None]:
    first = plan.seeds[0]
    tried: dict[float, float] = {}
    wanted = [rounded(centre * float(m)) for m in sorted(plan.multipliers)]
    left = (plan.extensions if plan.trials is None else plan.trials - len(wanted)) if len(wanted) > 1 else 0
    title = "learning-rate trials"
    while wanted:
        cells = [plan.cell(opt, rung, m, first) for m in wanted]
        found = yield title, cells
        tried |= {m: found[cell.name] for m, cell in zip(wanted, cells, strict=True)}
        more = next_multiplier(tried, refine=plan.trials is not None) if left else None
        wanted, left, title = [] if more is None else [more], left - 1, "further learning rates"
    multiplier = min(sorted(tried), key=tried.__getitem__)
    best = tried[multiplier]
    if math.isinf(best):
        return None
    dials, worth, trials = {}, {}, len(tried)
    for name, (default, *others) in plan.dials_of(opt).items():
        cells = [plan.cell(opt, rung, multiplier, first, {**dials, name: value}) for value in others]
        found = yield f"trials of {name}", cells
        losses = [best, *(found[cell.name] for cell in cells)]
        dials[name] = (default, *others)[losses.index(min(losses))]
        worth[name], best, trials = best - min(losses), min(losses), trials + len(others)
    yield "more seeds", [plan.cell(opt, rung, multiplier, seed, dials) for seed in plan.seeds[1:]]
    return Choice(
        opt, dict(rung.size), multiplier, trials,
        at_edge=len(tried) > 1 and multiplier in (min(tried), max(tried)),
        losses={f"{m:g}": None if math.isinf(tried[m]) else tried[m] for m in sorted(tried)},
        horizon=rung.horizon, dials=dials or None, worth=worth or None,
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
