"""The router's losses of a run: weighted by how the whole previous batch used the experts, and told in the metrics.

Sums of micro-batches and ranks come together here; see `danalab.models.moe.losses` for why that makes the gradient the
same however the batch was cut. In the first step experts count as evenly used, and nothing pushes any of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from danalab.models.config import ModelConfig
from danalab.models.moe.losses import Usage, router_losses, weighted
from danalab.models.moe.router import Routing


class RouterBalance:
    """What one step leaves for the next: the use of experts, [layers that have them, experts]."""

    def __init__(self, config: ModelConfig, device: torch.device):
        """Raises: AssertionError: the model has no experts."""
        sparsity = config.sparsity
        assert sparsity is not None
        self._config = config
        self._shape = (len(sparsity.layers), sparsity.n_experts)
        self._usage = Usage.even(*self._shape, device)
        self._sums: Tensor | None = None
        self._seen: Routing | None = None

    def loss(self, routing: Routing, position_count: float) -> Tensor:
        """The weighted losses of a micro-batch, to be added to its part of the step's loss; remembers its sums.

        Args: position_count: tokens of the global batch.
        """
        flat = torch.cat([part.detach().double().flatten() for part in routing])
        self._sums = flat if self._sums is None else self._sums + flat
        return weighted(self._config, router_losses(routing, self._usage, position_count))

    def finish(self, total: Callable[[Tensor], Tensor]) -> None:
        """After the last micro-batch of a step. Collective.

        Args: total: sums a tensor over the ranks that see different data.
        """
        sums, self._sums = self._sums, None
        if sums is None:
            return
        layers, n_experts = self._shape
        counts, probabilities, lse2 = total(sums).split([layers * n_experts, layers * n_experts, layers])
        self._seen = Routing(counts.view(self._shape), probabilities.view(self._shape), lse2)
        usage = Usage.of(self._seen)
        # A step that was not finite, and will be skipped, must not reach the next one's loss.
        finite = torch.isfinite(usage.probability).all()
        self._usage = Usage(
            *(torch.where(finite, new.float(), old) for new, old in zip(usage, self._usage, strict=True))
        )

    def scalars(self) -> dict[str, float]:
        """Of the last step's global batch: the losses before their weights; the largest and the smallest load of an
        expert, in multiples of an even share. Waits for the device."""
        if self._seen is None:
            return {}
        losses = router_losses(self._seen)
        load = Usage.of(self._seen).load * self._shape[1]
        found = {**losses, "max_load": load.max(), "min_load": load.min()}
        return {f"moe/{name}": float(value) for name, value in found.items()}

    def state_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return {name: part.tolist() for name, part in self._usage._asdict().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        device = self._usage.load.device
        self._usage = Usage(*(torch.tensor(state[name], device=device) for name in Usage._fields))
