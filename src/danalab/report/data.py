"""What reports are drawn from: the analysis of a ladder, its rows and run folders, and the curves of single runs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from danalab.errors import UserError
from danalab.ladder.analysis import Analysis
from danalab.ladder.fit.tuning import Tuned
from danalab.ladder.fit.tuning import has_diverged as has_diverged
from danalab.ladder.fit.tuning import is_usable as is_finished
from danalab.ladder.preregistration import Outcome
from danalab.ladder.saved.from_curves import LEAST_SEEDS as LEAST_SEEDS
from danalab.ladder.saved.from_curves import cost_to_reach
from danalab.train.run.open import open_run

Row = Mapping[str, Any]

SWEPT = {"kappa": 0.85, "gamma3": None, "delta": 8.0, "clipsnr": None, "omega": 4.0}
"""Settings that sweeps vary, with their defaults."""


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
    registered: Sequence[Outcome] = ()
    """Preregistered losses, and what was measured."""

    def failed(self) -> list[Row]:
        """Runs without a finite final loss."""
        return [row for row in self.rows if not is_finished(row)]

    def largest(self, opt: str) -> Tuned | None:
        """The optimizer's largest size that the baseline has too."""
        sizes = {each.params for each in self.analysis.at(self.analysis.baseline)}
        both = [each for each in self.analysis.at(opt) if each.params in sizes]
        return both[-1] if both else None

    def tuned_runs(self) -> Iterator[Row]:
        """The run of the first seed of each optimizer at its best learning rate, the largest and longest first."""
        for each in sorted(self.analysis.tuned, key=lambda each: (-each.params, -each.flops)):
            yield each.runs[0]

    def runs_with(self, name: str) -> dict[str, Path]:
        """Optimizer -> folder of one of its runs that holds `name`: the largest, longest, best tuned one."""
        others = sorted(
            (row for row in self.rows if is_finished(row)),
            key=lambda row: (-row["params"], -row["tokens"], row["final_loss"]),
        )
        chosen: dict[str, Path] = {}
        for row in (*self.tuned_runs(), *others):
            folder = Path(row["run"])
            if row["opt"] not in chosen and (folder / name).exists():
                chosen[row["opt"]] = folder
        return chosen


def setting(row: Row, name: str) -> Any:
    """A setting of a run, from its row or its settings."""
    return row[name] if row.get(name) is not None else row.get("settings", {}).get(name)


def varied(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Optimizer -> settings of `SWEPT` that have several values among its runs."""
    return {
        opt: [name for name in SWEPT if len({setting(row, name) for row in rows if row["opt"] == opt}) > 1]
        for opt in dict.fromkeys(row["opt"] for row in rows)
    }


@dataclass(frozen=True)
class Evaluation:
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
    points: tuple[Evaluation, ...]

    @property
    def final(self) -> Evaluation:
        return self.points[-1]


def read_curve(folder: str | Path) -> RunCurve:
    """Read a run folder, finished or not."""
    run = open_run(folder)
    rows = run.metrics()
    points = tuple(
        Evaluation(row["step"], row["tokens"], row["flops"], row["val/loss"]) for row in rows if "val/loss" in row
    )
    if not points:
        raise UserError(f"{folder}: no validation loss in metrics.jsonl; was --eval-interval reached?")
    return RunCurve(run.path.name, run.config["config"]["opt"], run.config, run.summary or {}, points)


def tokens_to_reach(curve: RunCurve, loss: float) -> float | None:
    """Tokens at which the validation curve first falls to `loss`, or None where it never does."""
    return cost_to_reach([point.tokens for point in curve.points], [point.val_loss for point in curve.points], loss)
