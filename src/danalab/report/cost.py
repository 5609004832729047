"""What a ladder took: device-hours by what they were spent on, money, and how an optimizer's steps compare in time."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from danalab.report.data import Absent, Material, Row, is_finished
from danalab.report.figures.colors import optimizer_color
from danalab.report.figures.drawing import SOFT, panels, styled
from danalab.train.run.metrics import read_rows

PARTS = {"trials": 0.45, "seeds": 1.0, "failed": 0.2}
"""What device-hours were spent on, and how strongly it is drawn: learning-rate trials, runs at the chosen rate, runs
that did not end with a finite loss."""


WORDS = {"trials": "learning-rate trials", "seeds": "chosen rate, all seeds", "failed": "no final loss"}


@dataclass
class Spent:
    """One optimizer's runs."""

    hours: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    """Device-hours of each part, evaluation apart."""
    runs: int = 0
    devices: set[str] = field(default_factory=set)

    @property
    def total(self) -> float:
        """Device-hours."""
        return sum(self.hours.values())


def hours_of(row: Row) -> float:
    """Device-hours of a run, as it logged its time; 0 where it says none."""
    if row.get("device_hours") is not None:
        return row["device_hours"]
    return (row.get("seconds") or 0.0) * row.get("world_size", 1) / 3600


def spent(material: Material) -> dict[str, Spent]:
    """Optimizer -> what its runs took, all runs counted."""
    chosen = {row["name"] for each in material.found.tuned for row in each.runs}
    found: dict[str, Spent] = defaultdict(Spent)
    for row in material.rows:
        mine = found[row["opt"]]
        part = "failed" if not is_finished(row) else "seeds" if row["name"] in chosen else "trials"
        mine.hours[part] += hours_of(row)
        mine.runs += 1
        mine.devices.add(str(row.get("device") or "?"))
    return {opt: found[opt] for opt in sorted(found, key=_order(material))}


def relative_time(material: Material) -> dict[str, float]:
    """Optimizer -> time of a token over the baseline's, at the largest size that both have.

    Of each the fastest run by its median step: other jobs on a machine only ever slow a run down.
    """
    times: dict[tuple[str, int], float] = {}
    for row in material.rows:
        seconds = seconds_a_token(row) if is_finished(row) else None
        if seconds is not None:
            key = row["opt"], row["params"]
            times[key] = min(times.get(key, math.inf), seconds)
    found = {}
    for opt in material.found.opts:
        sizes = [params for name, params in times if name == opt and (material.found.baseline, params) in times]
        if sizes:
            found[opt] = times[opt, max(sizes)] / times[material.found.baseline, max(sizes)]
    return found


def seconds_a_token(row: Row) -> float | None:
    """Device-seconds of a token: the median over logged steps where the run recorded them, else its mean."""
    file = Path(row["curve"])
    logged = [
        each["seconds_per_step"] * each["step"] / each["tokens"]
        for each in (read_rows(file) if file.is_file() else [])
        if each.get("seconds_per_step") and each.get("tokens")
    ]
    if logged:
        return float(np.median(logged)) * row.get("world_size", 1)
    return row.get("world_size", 1) / row["tokens_per_second"] if row.get("tokens_per_second") else None


@styled
def cost_figure(material: Material) -> Figure | Absent:
    """Device-hours of each optimizer, by what they were spent on, and the time of a token against the baseline's."""
    taken = {opt: mine for opt, mine in spent(material).items() if mine.total}
    if not taken:
        return Absent("rows that say how many seconds a run took")
    figure, (left, right) = panels(2, columns=2, each=(4.3, 0.34 * len(taken) + 1.1))
    names = list(taken)[::-1]
    whole = max(mine.total for mine in taken.values())
    unit, scale = ("device-hours", 1.0) if whole >= 1 else ("device-minutes", 60.0)
    at = np.zeros(len(names))
    for part, strength in PARTS.items():
        values = np.array([taken[opt].hours[part] * scale for opt in names])
        left.barh(names, values, left=at, color=[optimizer_color(opt) for opt in names], alpha=strength, height=0.62)
        at += values
    for y, opt in enumerate(names):
        money = "" if material.dollars_per_hour is None else f"  ${taken[opt].total * material.dollars_per_hour:,.2f}"
        left.annotate(f" {at[y]:.3g}{money}", (at[y], y), va="center", fontsize=8.5, color=SOFT)
    left.set(xlabel=f"{unit}, evaluation apart", xlim=(0, 1.18 * max(at)))
    left.grid(False, axis="y")
    ratios = relative_time(material)
    names = [opt for opt in names if opt in ratios]
    right.barh(names, [ratios[opt] for opt in names], color=[optimizer_color(opt) for opt in names], height=0.62)
    for y, opt in enumerate(names):
        right.annotate(f" {ratios[opt]:.2f}", (ratios[opt], y), va="center", fontsize=8.5, color=SOFT)
    right.axvline(1, color=SOFT, linewidth=1, linestyle=":")
    right.set(
        xlabel=f"time a token over {material.found.baseline}'s", xlim=(0, 1.15 * max(ratios.values(), default=1.0))
    )
    right.grid(False, axis="y")
    shares = {part: Patch(color=SOFT, alpha=strength, label=WORDS[part]) for part, strength in PARTS.items()}
    handles = [shares[part] for part in PARTS if any(mine.hours[part] for mine in taken.values())]
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles))
    return figure


def _order(material: Material) -> Any:
    places: Mapping[str, int] = {opt: i for i, opt in enumerate(material.found.opts)}
    return lambda opt: places.get(opt, len(places))
