"""One rank's part of a step's global batch."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

IGNORED = -1
"""Target that carries no loss: padding, or another speaker's words."""


@dataclass
class Batch:
    """Tensors whose first dimension is the sequence."""

    inputs: Tensor
    """Token ids, int64 [sequences, length]."""
    targets: Tensor
    """Token ids to predict, int64 [sequences, length]; `IGNORED` carries no loss."""
    weights: Tensor | None = None
    """Weight of each target, float [sequences, length]; None: all 1."""
    extra: dict[str, Tensor] = field(default_factory=dict)
    """What a stage adds, each [sequences, ...]: advantages, log-probabilities, ..."""

    def __len__(self) -> int:
        return self.inputs.shape[0]

    def rows(self, part: slice) -> "Batch":
        """Some of the sequences."""
        weights = None if self.weights is None else self.weights[part]
        extra = {name: value[part] for name, value in self.extra.items()}
        return Batch(self.inputs[part], self.targets[part], weights, extra)

    def to(self, device: torch.device) -> "Batch":
        """The batch on a device; copies from page-locked memory run beside the computation."""
        weights = None if self.weights is None else self.weights.to(device, non_blocking=True)
        extra = {name: value.to(device, non_blocking=True) for name, value in self.extra.items()}
        inputs, targets = (value.to(device, non_blocking=True) for value in (self.inputs, self.targets))
        return Batch(inputs, targets, weights, extra)
