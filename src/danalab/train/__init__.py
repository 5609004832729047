"""Training: one loop, exact resume, checkpoints that are committed or do not exist, metrics in a run folder.

    config -> resolve -> Trainer.fit: batch -> gradients -> clip -> finite? -> optimizer -> log; evaluate; save; stop?

Names are loaded on first use, so that `danalab train --help` needs no torch. A name must not be that of a module here,
which takes its place as soon as anything imports it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from danalab.train.config import TrainConfig
    from danalab.train.job import Outcome, run_training, train
    from danalab.train.resolved import Resolved
    from danalab.train.run import Run, open_run
    from danalab.train.trainer import Trainer

_HOMES = {
    "TrainConfig": "config",
    "Outcome": "job",
    "run_training": "job",
    "train": "job",
    "Resolved": "resolved",
    "Run": "run",
    "open_run": "run",
    "Trainer": "trainer",
}

__all__ = ["Outcome", "Resolved", "Run", "TrainConfig", "Trainer", "open_run", "run_training", "train"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
