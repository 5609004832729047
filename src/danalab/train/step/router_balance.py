"""The router's losses of a run, weighted by the use of the experts in the whole previous batch.

Sums over micro-batches and ranks make the gradient independent of how the batch is divided; see
`danalab.models.moe.losses`. In the first step all experts count as used evenly.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from danalab.models.config import ModelConfig
from danalab.models.moe.losses import Usage, router_losses, weighted
from danalab.models.moe.mixture import Routing


class RouterBalance:
    """The use of experts in the previous step, [layers with experts, experts]."""

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
        """The weighted losses of a micro-batch, a part of the step's loss; adds to the sums of the step.

        Args: position_count: tokens of the global batch.
        """
        flat = torch.cat([part.detach().double().flatten() for part in routing])
        self._sums = flat if self._sums is None else self._sums + flat
        return weighted(self._config, router_losses(routing, self._usage, position_count))

    def finish(self, total: Callable[[Tensor], Tensor]) -> None:
        """After the last micro-batch of a step. Collective."""
        sums, self._sums = self._sums, None
        if sums is None:
            return
        layers, n_experts = self._shape
        counts, probabilities, lse2 = total(sums).split([layers * n_experts, layers * n_experts, layers])
        self._seen = Routing(counts.view(self._shape), probabilities.view(self._shape), lse2)
        usage = Usage.of(self._seen)
        # A step that is not finite is skipped and must not change the loss of the next one.
        finite = torch.isfinite(usage.probability).all()
        self._usage = Usage(
            *(torch.where(finite, new.float(), old) for new, old in zip(usage, self._usage, strict=True))
        )

    def scalars(self) -> dict[str, float]:
        """Losses of the last global batch without their weights; largest and smallest load of an expert as multiples
        of an even share. Waits for the device."""
        if self._seen is None:
            return {}
        losses = router_losses(self._seen)
        load = Usage.of(self._seen).load * self._shape[1]
        found = {**losses, "max_load": load.max(), "min_load": load.min()}
        return {f"moe/{name}": float(value) for name, value in found.items()}

    def state_dict(self) -> dict[str, Any]:
        return {name: part.tolist() for name, part in self._usage._asdict().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        device = self._usage.load.device
        self._usage = Usage(*(torch.tensor(state[name], device=device) for name in Usage._fields))
