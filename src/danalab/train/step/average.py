"""Exponential average of the weights beside those that are trained, for evaluations and checkpoints.

With n averaged updates, the current one included: the mean of all weights at first, then an exponential average,

    average += max(1 - decay, 1/n) (weights - average)

The average is stored as the weights are: sharded under fsdp, replicated elsewhere. A skipped update is not averaged.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from danalab.models.shards import local_shard
from danalab.train.checkpoint import tensors

log = logging.getLogger(__name__)

AVERAGE = "average."
"""Prefix of the tensors' names in a checkpoint."""


class WeightAverage:
    """The average of a model's floating-point state."""

    def __init__(self, model: nn.Module, decay: float):
        self._decay = decay
        self._trained: dict[str, Tensor] = model.state_dict(keep_vars=True)
        self._average = {name: value.detach().clone() for name, value in self._trained.items()}
        self.count = 0
        """Updates that it contains."""

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        for name, average in self._average.items():
            yield local_shard(average), local_shard(self._trained[name].detach())

    @torch.no_grad()
    def update(self) -> None:
        """Include the current weights."""
        self.count += 1
        for average, trained in self._pairs():
            average.lerp_(trained, max(1 / self.count, 1 - self._decay))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model has the average as its weights; the trained ones come back bit for bit."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for average, trained in self._pairs():
            kept = trained.clone()
            trained.copy_(average)
            average.copy_(kept)

    # ---- checkpoints ----

    def stored(self) -> dict[str, Tensor]:
        """Tensors for a checkpoint, by name."""
        return self._average if self.count else {}

    def state_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return {"decay": self._decay, "count": self.count}

    def restore(self, folder: Path, state: Mapping[str, Any] | None) -> None:
        """Restore from a checkpoint; one without this average starts a new one."""
        if state is None or state["decay"] != self._decay:
            log.warning("%s: has no average with --ema %g; it starts here", folder, self._decay)
            return
        self.count = state["count"]
        if self.count:
            tensors.read_named(folder, {AVERAGE + name: value for name, value in self._average.items()})
