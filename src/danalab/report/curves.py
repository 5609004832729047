"""The curves of a run, read from its folder, and the tokens at which one crosses a loss."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from danalab.errors import UserError
from danalab.ladder.saved.from_curves import cost_to_reach
from danalab.train.run.open import open_run


@dataclass(frozen=True)
class Point:
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
    points: tuple[Point, ...]

    @property
    def final(self) -> Point:
        return self.points[-1]


def read_curve(folder: str | Path) -> RunCurve:
    """Read a run folder, finished or not."""
    run = open_run(folder)
    rows = run.metrics()
    points = tuple(
        Point(row["step"], row["tokens"], row["flops"], row["val/loss"]) for row in rows if "val/loss" in row
    )
    if not points:
        raise UserError(f"{folder}: no validation loss in metrics.jsonl; was --eval-interval reached?")
    return RunCurve(run.path.name, run.config["config"]["opt"], run.config, run.summary or {}, points)


def tokens_to_reach(curve: RunCurve, loss: float) -> float | None:
    """Tokens at which the validation curve first falls to `loss`, or None where it never does."""
    return cost_to_reach([point.tokens for point in curve.points], [point.val_loss for point in curve.points], loss)
