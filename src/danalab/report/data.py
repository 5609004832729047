"""What a report is drawn from: the analysis of a ladder, its rows, and other files of its run folders."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from danalab.ladder.analysis import Analysis
from danalab.ladder.fit.tuning import Tuned
from danalab.ladder.fit.tuning import has_diverged as has_diverged
from danalab.ladder.fit.tuning import is_usable as is_finished
from danalab.ladder.preregistration import Outcome
from danalab.ladder.saved.from_curves import LEAST_SEEDS as LEAST_SEEDS

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
