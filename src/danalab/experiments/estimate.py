"""Estimates before training: FLOPs by the scaling rules, hours by a rate.

    device-hours = FLOPs / (FLOP/s of one device) / 3600          with the FLOPs of the optimizer's own matrix products

The rate is that of a named accelerator at a share of its peak, or the measured rate of
finished runs in the folder (of the same optimizer where possible, and of the nearest size).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from danalab.errors import UserError
from danalab.experiments.cells import Cell, check_optimizers, known_vocabulary, resolved
from danalab.hardware import named

if TYPE_CHECKING:
    from danalab.train.config.train_config import TrainConfig

Rate = Callable[["TrainConfig"], float]
"""Plan of a run -> FLOP/s of one device."""


def accelerator_rate(name: str, mfu: float) -> Rate:
    """The rate of a named accelerator at the share `mfu` of its peak."""
    if not 0 < mfu <= 1:
        raise UserError(f"--mfu is {mfu:g}; it must be above 0 and at most 1, a share of the peak")
    peak = named(name).tflops * 1e12
    return lambda planned: mfu * peak


def measured_rate(rows: Sequence[Mapping[str, Any]]) -> Rate | None:
    """The measured rate of finished runs; None without any."""
    timed = [
        row
        for row in rows
        if row.get("final_loss") is not None and row.get("device_hours") and row.get("flops")
    ]
    speeds = [
        (row["flops"] + (row.get("optimizer_flops") or 0)) / (row["device_hours"] * 3600) for row in timed
    ]
    seen = [
        (row["opt"], row["params"], row.get("batch"), speed) for row, speed in zip(timed, speeds, strict=True)
    ]
    if not seen:
        return None

    def rate(planned: "TrainConfig") -> float:
        own = [each for each in seen if each[0] == planned.opt] or seen
        here = planned.global_batch
        distance = [
            abs(math.log(size / planned.model.exact_params)) + abs(math.log((batch or here) / here))
            for _, size, batch, _ in own
        ]
        return median(each[3] for each, far in zip(own, distance, strict=True) if far <= min(distance))

    return rate


def estimate(cells: Sequence[Cell], folder: Path, rate: Rate | None = None) -> list[dict[str, Any]]:
    """The estimate of each run, as --json prints it.

    None: epochs where the size of the data is not known before they are prepared, device_hours without a rate.
    """
    check_optimizers(cells)
    estimates = []
    for cell in cells:
        config = cell.config(folder / "runs" / cell.name)
        planned = resolved(config)
        steps = planned.iterations
        tokens, flops = planned.tokens(steps), planned.flops(steps)
        both = flops + (planned.optimizer_flops(steps) or 0.0)
        tokens_per_epoch = getattr(
            known_vocabulary(config.source, config.tokenizer), "tokens_per_epoch", None
        )
        data_tokens = tokens_per_epoch and tokens_per_epoch(planned.seq_len)
        estimates.append(
            {
                "name": cell.name,
                "opt": planned.opt,
                "params": planned.model.exact_params,
                "steps": steps,
                "lr": planned.lr,
                "tokens": tokens,
                "epochs": data_tokens and tokens / data_tokens,
                "flops": flops,
                "device_hours": None if rate is None else both / rate(planned) / 3600,
            }
        )
    return estimates


def total(values: Sequence[float | None]) -> float | None:
    """Sum; None where a value is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
