"""The curves of a run, read from its folder, and where one curve crosses another's final loss."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from danalab.errors import UserError
from danalab.files import read_json


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
    """What the comparisons need of one run."""

    name: str
    opt: str
    config: dict[str, Any]
    summary: dict[str, Any]
    """Empty while the run has not ended."""
    points: tuple[Point, ...]
    train: tuple[tuple[int, float], ...]
    """(tokens, training loss) of every logged step."""

    @property
    def final(self) -> Point:
        return self.points[-1]


def read_curve(folder: str | Path) -> RunCurve:
    """Read a run folder, finished or not.

    Raises:
        UserError: no run there, or no validation point in it yet.
    """
    folder = Path(folder)
    if not (folder / "config.json").exists():
        raise UserError(f"{folder}: not a run folder (no config.json)")
    config = read_json(folder / "config.json")
    summary = read_json(folder / "summary.json") if (folder / "summary.json").exists() else {}
    rows = read_metrics(folder)
    points = tuple(
        Point(row["step"], row["tokens"], row["flops"], row["val/loss"])
        for row in rows
        if math.isfinite(row.get("val/loss", math.nan))
    )
    if not points:
        raise UserError(f"{folder}: no validation loss in metrics.jsonl; was --eval-interval reached?")
    train = tuple((row["tokens"], row["train/loss"]) for row in rows if "train/loss" in row)
    return RunCurve(folder.name, config["config"]["opt"], config, summary, points, train)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl; a last line cut short by a kill is left out."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        raise UserError(f"{path}: no metrics yet")
    rows = []
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number < len(lines):
                raise UserError(f"{path}:{number}: not valid JSON: {error}") from error
    return rows


def tokens_to_reach(curve: RunCurve, loss: float) -> float | None:
    """Tokens at which the validation curve first falls to `loss`, or None where it never does.

    Between two evaluations the loss is taken to be linear in the logarithm of the tokens.
    """
    before: Point | None = None
    for point in curve.points:
        if point.val_loss <= loss:
            if before is None or before.tokens <= 0 or before.val_loss == point.val_loss:
                return float(point.tokens)
            share = (before.val_loss - loss) / (before.val_loss - point.val_loss)
            return math.exp((1 - share) * math.log(before.tokens) + share * math.log(point.tokens))
        before = point
    return None
