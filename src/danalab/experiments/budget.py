"""The budget of each optimizer on a rung: trials, dials, best values at an edge, and the gain of each dial."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from danalab.experiments.rows import Row, is_usable
from danalab.experiments.tuning import Tuned, as_text, settings_of, value_of

LEAST_VALUES = 3
"""Values of a dial from which one can be inside."""


@dataclass(frozen=True)
class Dial:
    """The values of a setting that were tried with all else equal."""

    name: str
    values: tuple[Any, ...]
    best: Any
    at_edge: bool
    """The best value is an outermost one of several numbers: a better one may lie beyond."""
    gain: float
    """Median of its trials' losses minus the least [nats/token]."""


@dataclass(frozen=True)
class TuningBudget:
    """The tuning of an optimizer on a rung."""

    opt: str
    params: int
    horizon: float
    trials: int
    """Settings tried with the first seed, diverged ones too."""
    seeds: int
    dials: tuple[Dial, ...]
    """The learning rate first."""

    @property
    def edges(self) -> list[str]:
        """Dials whose best value is at an edge."""
        return [dial.name for dial in self.dials if dial.at_edge]


def budget_of(tuned: Tuned, horizon: float) -> TuningBudget:
    """The budget of a tuned optimizer."""
    names = set().union(*(settings_of(row) for row in tuned.trials))
    varied = {name for name in names if len({as_text(value_of(row, name)) for row in tuned.trials}) > 1}
    dials = [_dial(tuned.trials, name) for name in ["lr", *sorted(varied - {"lr", "weight_decay", "wd_ts"})]]
    known = tuple(dial for dial in dials if dial is not None)
    return TuningBudget(tuned.opt, tuned.params, horizon, len(tuned.trials), len(tuned.runs), known)


def _dial(trials: Sequence[Row], name: str) -> Dial | None:
    """A setting's trials with all else equal: of several such groups the one with most values; None: it had one."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in trials:
        follow = {"weight_decay", "wd_ts", name} if name == "lr" else {name}
        groups[as_text({key: value for key, value in settings_of(row).items() if key not in follow})].append(
            row
        )

    def rank(rows: list[Row]) -> tuple[int, float]:
        losses = [row["final_loss"] for row in rows if is_usable(row)]
        return len({as_text(value_of(row, name)) for row in rows}), -min(losses, default=np.inf)

    rows = max(groups.values(), key=rank)
    tried = {as_text(value_of(row, name)): value_of(row, name) for row in rows}
    usable = [row for row in rows if is_usable(row)]
    if len(tried) < 2 or not usable:
        return None
    losses = [row["final_loss"] for row in usable]
    best = value_of(usable[int(np.argmin(losses))], name)
    numbers = all(isinstance(value, (int, float)) for value in tried.values())
    values = sorted(tried.values()) if numbers else list(tried.values())
    at_edge = (
        numbers and len(values) >= (2 if name == "lr" else LEAST_VALUES) and best in (values[0], values[-1])
    )
    return Dial(name, tuple(values), best, at_edge, float(np.median(losses) - min(losses)))
