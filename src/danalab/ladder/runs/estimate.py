"""Estimates before training: FLOPs by the scaling rules, hours by a rate, costs by a price.

    device-hours = FLOPs / (FLOP/s of one device) / 3600

The rate is that of a named accelerator at a share of its peak, or the measured rate of finished runs in the folder: of
the same optimizer where possible, and of the nearest size.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from danalab.errors import UserError
from danalab.ladder.runs.grid import Cell
from danalab.scaling.hardware import named

if TYPE_CHECKING:
    from danalab.scaling import Plan
    from danalab.train.config.train_config import TrainConfig

Rate = Callable[[str, int], float]
"""(optimizer, parameters) -> FLOP/s of one device."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The estimate of a run."""

    name: str
    opt: str
    params: int
    steps: int
    lr: float
    tokens: int
    flops: float
    device_hours: float | None
    """None: no rate is known."""
    cost: float | None
    """None: no price, or no rate."""


def accelerator_rate(name: str, mfu: float) -> Rate:
    """The rate of a named accelerator at the share `mfu` of its peak."""
    if not 0 < mfu <= 1:
        raise UserError(f"--mfu {mfu:g}: must lie in 0..1, a share of the peak")
    peak = named(name).tflops * 1e12
    return lambda opt, params: mfu * peak


def measured_rate(rows: Sequence[Mapping[str, Any]]) -> Rate | None:
    """The measured rate of finished runs; None without any."""
    seen = [
        (row["opt"], row["params"], row["flops"] / (row["device_hours"] * 3600))
        for row in rows
        if row.get("final_loss") is not None and row.get("device_hours") and row.get("flops")
    ]
    if not seen:
        return None

    def rate(opt: str, params: int) -> float:
        own = [each for each in seen if each[0] == opt] or seen
        least = min(abs(math.log(size / params)) for _, size, _ in own)
        return median(speed for _, size, speed in own if abs(math.log(size / params)) <= least)

    return rate


def estimate(
    cells: Sequence[Cell], folder: Path, rate: Rate | None = None, price: float | None = None
) -> list[Estimate]:
    """The estimate of each run."""
    found = []
    for cell in cells:
        planned = plan_of(cell.config(folder / "runs" / cell.name))
        hours = None if rate is None else planned.flops / rate(planned.opt, planned.exact_params) / 3600
        found.append(
            Estimate(
                name=cell.name, opt=planned.opt, params=planned.exact_params, steps=planned.steps, lr=planned.lr,
                tokens=planned.tokens, flops=planned.flops, device_hours=hours,
                cost=None if hours is None or price is None else hours * price,
            )
        )  # fmt: skip
    return found


def plan_of(config: "TrainConfig") -> "Plan":
    """Size, steps and FLOPs of a run."""
    from danalab.train.config.resolve import resolve

    return resolve(config, _vocabulary(config.data, config.tokenizer)).plan


@cache
def _vocabulary(data: str, tokenizer: str | None) -> Any:
    from danalab.data import vocabulary_of

    return vocabulary_of(data, tokenizer)


def total(values: Sequence[float | None]) -> float | None:
    """Sum; None where a value is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
