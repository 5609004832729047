"""Base of callbacks: mirrors of the metrics, monitors, statistics, profiles, samples.

A callback changes nothing of the run. Its `state_dict` is part of checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn

    from danalab.train.config.train_config import TrainConfig
    from danalab.train.parallel.strategy import ParallelStrategy
    from danalab.train.stage import Consumption


@dataclass(frozen=True)
class CallbackContext:
    """The run that a callback watches."""

    spec: TrainConfig
    folder: Path
    """The run folder."""
    model: nn.Module
    optimizer: torch.optim.Optimizer
    strategy: ParallelStrategy
    consumption: Consumption
    """Tokens and FLOPs after a number of steps."""

    @property
    def writes(self) -> bool:
        """Whether this rank writes files; the others take part in collectives."""
        return self.strategy.world.is_main


class Callback:
    """Hooks of a run, which do nothing here. `on_row` and `on_end` are called on rank 0 only, others on every rank."""

    name = "callback"
    """Key of its state in checkpoints."""
    rank0_only = False
    """Other ranks have none, so that it takes no part in collectives."""

    def __init__(self, context: CallbackContext):
        """Raises UserError where an extra is missing, or the run lacks what the callback needs."""
        self.context = context

    def on_start(self, step: int) -> None:
        """Training starts or resumes from the state after `step` steps."""

    def on_evaluated(self, step: int) -> None:
        """The model was evaluated after `step` steps."""

    def on_row(self, row: dict[str, Any]) -> None:
        """A row of metrics was written."""

    def on_end(self, summary: dict[str, Any]) -> None:
        """The run ended or was stopped; entries may be added to the summary."""

    def close(self) -> None:
        """Release files and connections; called however training ends."""

    def state_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict`."""
