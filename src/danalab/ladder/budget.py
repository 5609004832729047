"""The budget of each optimizer on a rung: trials, dials, best values at an edge, and the gain of each dial."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from danalab.ladder.fit.tuning import (
    Row,
    Tuned,
    TunedSize,
    as_text,
    differing_settings,
    is_beside,
    rung_of,
    trials_of,
    value_of,
)
from danalab.sweep.rows import has_diverged, is_usable

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


def budget_of(tuned: Tuned, horizon: float, rows: Sequence[Row]) -> TuningBudget:
    """The budget of a tuned optimizer, from all rows of a ladder."""
    trials = _trials(tuned, rows)
    return TuningBudget(tuned.opt, tuned.params, horizon, tuned.trials, len(tuned.runs), tuple(_dials(trials)))


def tuned_size(tuned: Tuned, rows: Sequence[Row], dial: str = "lr") -> TunedSize:
    """The trials of a dial, by default the learning rate, and the seeds, for `danalab.ladder.fit.tuning`.

    Where other dials were moved after the rate, the trials of the rate are moved by what these lowered the loss.
    """
    seeds = np.array([row["final_loss"] for row in sorted(tuned.runs, key=lambda row: row["seed"])])
    here = [row for row in _group(_trials(tuned, rows), dial) if is_usable(row)]
    group, repeats = {value_of(row, dial): row["final_loss"] for row in here}, here[0]["trial_seeds"] if here else 1
    rates = sorted(value for value in group if isinstance(value, (int, float)) and value > 0)
    if not rates:
        return TunedSize(np.array([tuned.lr]), seeds[:1], 0, seeds, length=tuned.length)
    losses = np.array([group[rate] for rate in rates])
    best = int(losses.argmin())
    losses *= seeds[:repeats].mean() / losses[best]
    return TunedSize(np.array(rates), losses, best, seeds, repeats, tuned.length)


def _trials(tuned: Tuned, rows: Sequence[Row]) -> list[Row]:
    """The trials at the optimizer's size, horizon and batch; those that diverged have a row per seed."""
    one = tuned.runs[0]
    here = [row for row in rows if is_usable(row) and rung_of(row) == rung_of(one)]
    lost = [row for row in rows if has_diverged(row) and is_beside(row, one)]
    first = min(row["seed"] for row in (*here, *lost))
    return [*trials_of(here), *(row for row in lost if row["seed"] == first)]


def _dials(trials: Sequence[Row]) -> list[Dial]:
    dials = []
    names = set().union(*(differing_settings(row) for row in trials))
    varied = {name for name in names if len({as_text(value_of(row, name)) for row in trials}) > 1}
    for name in ["lr", *sorted(varied - {"lr"})]:
        group = [row for row in _group(trials, name) if is_usable(row)]
        values = {as_text(value_of(row, name)): value_of(row, name) for row in group}
        if len(values) < 2:
            continue
        losses = [row["final_loss"] for row in group]
        best = value_of(group[int(np.argmin(losses))], name)
        tried = [value_of(row, name) for row in _group(trials, name)]
        numbers = all(isinstance(value, (int, float)) for value in tried)
        at_edge = numbers and len(values) >= (2 if name == "lr" else LEAST_VALUES) and best in (min(tried), max(tried))
        order = sorted(values.values()) if numbers else list(values.values())
        dials.append(Dial(name, tuple(order), best, at_edge, float(np.median(losses) - min(losses))))
    return dials


def _group(trials: Sequence[Row], name: str) -> list[Row]:
    """The trials that differ in nothing but one setting: of several such groups the one with most values."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in trials:
        rest = {key: value for key, value in differing_settings(row).items() if key != name}
        groups[json.dumps(rest, sort_keys=True, default=str)].append(row)

    def rank(rows: list[Row]) -> tuple[int, float]:
        losses = [row["final_loss"] for row in rows if is_usable(row)]
        return len({as_text(value_of(row, name)) for row in rows}), -min(losses, default=np.inf)

    return max(groups.values(), key=rank)
