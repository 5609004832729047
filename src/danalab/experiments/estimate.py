"""Estimates before training: FLOPs by the scaling rules, hours by a rate, costs by a price.

    device-hours = FLOPs / (FLOP/s of one device) / 3600          with the FLOPs of the optimizer's own matrix products

The rate is that of a named accelerator at a share of its peak, or the measured rate of
finished runs in the folder (of the same optimizer where possible, and of the nearest size).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from danalab.errors import UserError
from danalab.experiments.cells import Cell
from danalab.hardware import named

if TYPE_CHECKING:
    from danalab.scaling import Plan
    from danalab.train.config.train_config import TrainConfig

Rate = Callable[["Plan"], float]
"""Plan of a run -> FLOP/s of one device."""
_SIZES_AND_SEEDS = (
    "heads",
    "size",
    "d_model",
    "n_layers",
    "n_heads",
    "head_dim",
    "mlp_dim",
    "seed",
    "data_seed",
    "lr",
    "lr_multiplier",
    "iterations",
    "tokens_per_param",
    "global_batch",
    "omega",
)
"""Settings whose values make no optimizer refuse the others."""


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

    def rate(planned: "Plan") -> float:
        own = [each for each in seen if each[0] == planned.opt] or seen
        here = planned.global_batch
        distance = [
            abs(math.log(size / planned.model.exact_params)) + abs(math.log((batch or here) / here))
            for _, size, batch, _ in own
        ]
        return median(each[3] for each, far in zip(own, distance, strict=True) if far <= min(distance))

    return rate


def estimate(
    cells: Sequence[Cell], folder: Path, rate: Rate | None = None, price: float | None = None
) -> list[dict[str, Any]]:
    """The estimate of each run, as --json prints it.

    None: epochs where the size of the data is not known before they are prepared, device_hours without a rate, cost
    without a price.
    """
    check_optimizers(cells)
    estimates = []
    for cell in cells:
        config = cell.config(folder / "runs" / cell.name)
        planned = plan_of(config)
        hours = None if rate is None else planned.total_flops / rate(planned) / 3600
        tokens_per_epoch = getattr(_vocabulary(config.source, config.tokenizer), "tokens_per_epoch", None)
        data_tokens = tokens_per_epoch and tokens_per_epoch(planned.seq_len)
        estimates.append(
            {
                "name": cell.name,
                "opt": planned.opt,
                "params": planned.model.exact_params,
                "steps": planned.steps,
                "lr": planned.lr,
                "tokens": planned.tokens,
                "epochs": data_tokens and planned.tokens / data_tokens,
                "flops": planned.flops,
                "device_hours": hours,
                "cost": None if hours is None or price is None else hours * price,
            }
        )
    return estimates


def check_optimizers(cells: Sequence[Cell]) -> None:
    """Build each optimizer, with each of its settings, on a tiny model.

    UserError: one refuses its settings, needs a package, or cannot be run by the trainer.
    """
    from danalab.models import build_model
    from danalab.models.config import ModelConfig
    from danalab.train.trainer import OptimizerDriver

    model = build_model(ModelConfig("enoki", 8, 1, 1, 8, 16, 16, 8), seed=0)
    checked: set[str] = set()
    for cell in cells:
        key = repr(
            sorted((name, value) for name, value in cell.settings.items() if name not in _SIZES_AND_SEEDS)
        )
        if key not in checked:
            checked.add(key)
            spec = _resolved(cell.config(Path(cell.name)))
            try:
                OptimizerDriver.build(spec, model)
            except UserError as error:
                raise UserError(f"run {cell.name}: {error}") from error


def plan_of(config: "TrainConfig") -> "Plan":
    """Size, steps and FLOPs of a run."""
    return _resolved(config).planned


def _resolved(config: "TrainConfig") -> Any:
    from danalab.train.config.resolve import resolve

    return resolve(config, _vocabulary(config.source, config.tokenizer))


@cache
def _vocabulary(data: str, tokenizer: str | None) -> Any:
    from danalab.data import vocabulary_of

    return vocabulary_of(data, tokenizer)


def total(values: Sequence[float | None]) -> float | None:
    """Sum; None where a value is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
