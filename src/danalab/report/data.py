"""What reports are drawn from: the analysis of a ladder, its rows and run folders, and the curves of single runs."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from danalab.errors import UserError
from danalab.ladder.rows import ladder_file, metrics_of, read_ladder, validation_points
from danalab.ladder.saving import curve_arrays, first_crossing, smoothed
from danalab.ladder.studies import Analysis
from danalab.sweep.rows import is_usable

Row = Mapping[str, Any]


@dataclass(frozen=True)
class MissingFigure:
    """A figure that cannot be drawn."""

    how: str
    """What data are missing, and how to get them."""


@dataclass(frozen=True)
class ReportData:
    """The data of all figures and tables."""

    analysis: Analysis
    rows: Sequence[Row]
    """Every run, finished or not."""
    dollars_per_hour: float | None = None
    """Price of a device."""
    folder: Path | None = None
    """The ladder's; None: its rows come from elsewhere."""

    def failed(self) -> list[Row]:
        """Runs without a finite final loss."""
        return [row for row in self.rows if not is_usable(row)]

    def tuned_runs(self) -> Iterator[Row]:
        """The run of the first seed of each optimizer at its best learning rate, the largest and longest first."""
        for each in sorted(self.analysis.tuned, key=lambda each: (-each.params, -each.flops)):
            yield each.runs[0]


PARTS = ("trials", "seeds", "failed")
"""Purposes of device-hours: learning-rate trials, runs at the chosen rate, runs without a finite loss."""


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
    """Device-hours of a run; 0 where its time was not logged."""
    return row.get("device_hours") or 0.0


def spent(data: ReportData) -> dict[str, Spent]:
    """Optimizer -> cost of all its runs."""
    chosen = {row["name"] for each in data.analysis.every for row in each.runs}
    costs: dict[str, Spent] = defaultdict(Spent)
    for row in data.rows:
        mine = costs[row["opt"]]
        part = "failed" if not is_usable(row) else "seeds" if row["name"] in chosen else "trials"
        mine.hours[part] += hours_of(row)
        mine.runs += 1
        mine.devices.add(str(row.get("device") or "?"))
    places = {opt: i for i, opt in enumerate(data.analysis.opts)}
    return {opt: costs[opt] for opt in sorted(costs, key=lambda opt: places.get(opt, len(places)))}


def relative_time(data: ReportData) -> dict[str, float]:
    """Optimizer -> time of a token over the baseline's, at the largest size that both have.

    Each by its fastest run, by the median step: other jobs on a machine only slow a run down.
    """
    times: dict[tuple[str, int], float] = {}
    for row in data.rows:
        seconds = seconds_a_token(row) if is_usable(row) else None
        if seconds is not None:
            key = row["opt"], row["params"]
            times[key] = min(times.get(key, math.inf), seconds)
    ratios = {}
    for opt in data.analysis.opts:
        sizes = [params for name, params in times if name == opt and (data.analysis.baseline, params) in times]
        if sizes:
            ratios[opt] = times[opt, max(sizes)] / times[data.analysis.baseline, max(sizes)]
    return ratios


def seconds_a_token(row: Row) -> float | None:
    """Device-seconds of a token: the median over logged steps where the run recorded them, else its mean."""
    timed = [each for each in metrics_of(row) if each.get("seconds_per_step") and each.get("tokens")]
    logged = [each["seconds_per_step"] * each["step"] / each["tokens"] for each in timed]
    if logged:
        return float(np.median(logged)) * row.get("world_size", 1)
    return row.get("world_size", 1) / row["tokens_per_second"] if row.get("tokens_per_second") else None


@dataclass(frozen=True)
class CurvePoint:
    """One evaluation on the validation windows."""

    step: int
    tokens: int
    flops: float
    val_loss: float
    """Nats a token."""


@dataclass(frozen=True)
class RunCurve:
    """The data of one run for comparisons."""

    name: str
    opt: str
    config: dict[str, Any]
    summary: dict[str, Any]
    """Empty until the run ends."""
    points: tuple[CurvePoint, ...]

    @property
    def final(self) -> CurvePoint:
        return self.points[-1]


def read_curve(folder: str | Path) -> RunCurve:
    """Read a run folder, finished or not, or PACKED/NAME: the run of that name in a packed ladder or its folder."""
    from danalab.train.run.open import open_run

    path = Path(folder)
    packed = None if path.exists() else ladder_file(path.parent)
    row = next((row for row in read_ladder(packed) if row["name"] == path.name), None) if packed else None
    if row is None:
        run = open_run(path)
        name, config, summary, metrics = run.path.name, run.config, run.summary or {}, run.metrics()
    else:
        named = {"val/loss": "final_loss", "time": "seconds"}
        facts = {key: row[named.get(key, key)] for key in ("status", "tokens_per_second", *named)}
        summary = {key: value for key, value in facts.items() if value is not None}
        config = {**row, "config": row["settings"] | {key: row[key] for key in ("opt", "lr", "seed")}}
        per_token = (row["flops"] or math.nan) / (row["tokens"] or math.nan)  # points of other programs have no FLOPs
        name, metrics = row["name"], [{"flops": per_token * p["tokens"], **p} for p in validation_points(row)]
    points = tuple(
        CurvePoint(each["step"], each["tokens"], each["flops"], each["val/loss"])
        for each in metrics if "val/loss" in each
    )  # fmt: skip
    if not points:
        raise UserError(f"{folder}: no validation loss in metrics.jsonl; was --eval-interval reached?")
    return RunCurve(name, config["config"]["opt"], config, summary, points)


def tokens_to_reach(curve: RunCurve, base: RunCurve) -> float | None:
    """Tokens at which a run's curve first falls to the end of another's, both smoothed; None: it never does."""
    (x, y), (u, v) = (
        curve_arrays([point.tokens for point in each.points], [point.val_loss for point in each.points])
        for each in (curve, base)
    )
    return first_crossing(x, smoothed(x, y), float(smoothed(u, v)[-1]))
