"""Running average of the weights beside those that are trained, for evaluations and checkpoints.

With n averaged updates, the current one included:

    average += rate(n) (weights - average)
    ema:D         rate = max(1 - D, 1/n)         the mean at first, then an exponential average
    tail:SHARE    rate = 1/n                     the mean over the last SHARE of the run's steps
    log:DELTA     rate = DELTA/(DELTA + n - 1)   the weights after update s count as s^(DELTA - 1)

The average is stored as the weights are: sharded under fsdp, replicated elsewhere. A skipped update is not averaged.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from danalab.optim.base import local_part as local
from danalab.train.checkpoint import tensors

log = logging.getLogger(__name__)

AVERAGE = "average."
"""Prefix of the tensors' names in a checkpoint."""


class WeightAverage:
    """The average of a model's floating-point state, by `rule` (ema, tail or log, and its number) over `iterations`."""

    def __init__(self, model: nn.Module, rule: tuple[str, float], iterations: int):
        self._kind, self._value = rule
        self._trained: dict[str, Tensor] = model.state_dict(keep_vars=True)
        self._average = {name: value.detach().clone() for name, value in self._trained.items()}
        self._first = iterations - max(1, round(self._value * iterations)) if self._kind == "tail" else 0
        # On the device: on a GPU the host does not know yet whether the update was made.
        self._count = torch.zeros((), device=local(next(iter(self._average.values()))).device)

    @property
    def begun(self) -> bool:
        """Whether it contains an update; waits for the device."""
        return bool(self._count)

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        for name, average in self._average.items():
            yield local(average), local(self._trained[name].detach())

    @torch.no_grad()
    def update(self, step: int, made: Tensor) -> None:
        """Include the weights after `step` steps, unless `made` (0-dim bool, on the weights' device) is False."""
        if step <= self._first:
            self._count.zero_()  # an extension has a later tail
            return
        self._count += made
        n = self._count.clamp(min=1)
        rates = {"ema": (1 / n).clamp(min=1 - self._value), "tail": 1 / n, "log": self._value / (self._value + n - 1)}
        rate = rates[self._kind] * made
        for average, trained in self._pairs():
            average.lerp_(trained, rate.to(average.dtype))

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
        return {AVERAGE + name: value for name, value in self._average.items()} if self.begun else {}

    def state_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return {"kind": self._kind, "value": self._value, "count": int(self._count)}

    def restore(self, folder: Path, state: Mapping[str, Any] | None) -> None:
        """Restore from a checkpoint; one without this average starts a new one."""
        if state is None or {**state, "count": 0} != {"kind": self._kind, "value": self._value, "count": 0}:
            log.warning("%s: has no average %s:%g; it starts here", folder, self._kind, self._value)
            return
        self._count.fill_(state["count"])
        if state["count"]:
            tensors.read_named(folder, {AVERAGE + name: value for name, value in self._average.items()})
