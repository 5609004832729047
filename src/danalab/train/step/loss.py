"""Batches and loss functions. The loss of a global batch is the sum of its micro-batches' losses on all ranks.

    totals = sum of `denominators` over the ranks          loss = sum over micro-batches of part / totals

so neither accumulation, number of ranks nor masking changes the gradient.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from danalab.models.config import ModelConfig
from danalab.models.moe.mixture import Routing, Usage, router_losses, weighted

IGNORED = -1
"""Target that carries no loss: padding, or another speaker's words."""


@dataclass
class TrainingBatch:
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

    def rows(self, part: slice) -> "TrainingBatch":
        """Some of the sequences."""
        return self._each(lambda value: value[part])

    def to(self, device: torch.device) -> "TrainingBatch":
        """The batch on a device; copies from page-locked memory run beside the computation."""
        return self._each(lambda value: value.to(device, non_blocking=True))

    def _each(self, change: Callable[[Tensor], Tensor]) -> "TrainingBatch":
        weights = None if self.weights is None else change(self.weights)
        extra = {name: change(value) for name, value in self.extra.items()}
        return TrainingBatch(change(self.inputs), change(self.targets), weights, extra)


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
        """A micro-batch's part of the losses of a batch of `position_count` tokens; adds to the sums of the step."""
        flat = torch.cat([part.detach().double().flatten() for part in routing])
        self._sums = flat if self._sums is None else self._sums + flat
        return weighted(self._config, router_losses(routing, self._usage, position_count))

    def finish(self, total: Callable[[Tensor], Tensor]) -> None:
        """Take the usage of the step, after its last micro-batch. Collective."""
        sums, self._sums = self._sums, None
        if sums is None:
            return
        layers, n_experts = self._shape
        counts, probabilities, lse2 = total(sums).split([layers * n_experts, layers * n_experts, layers])
        self._seen = Routing(counts.view(self._shape), probabilities.view(self._shape), lse2)
        usage = Usage.of(self._seen)
        # A step that is not finite is skipped and must not change the loss of the next one.
        finite = torch.isfinite(usage.probability).all()
        pairs = zip(usage, self._usage, strict=True)
        self._usage = Usage(*(torch.where(finite, new.float(), old) for new, old in pairs))

    def scalars(self) -> dict[str, float]:
        """Losses of the last global batch without their weights; largest and smallest load of an expert as multiples
        of an even share. Waits for the device."""
        if self._seen is None:
            return {}
        losses = router_losses(self._seen)
        load = Usage.of(self._seen).load * self._shape[1]
        values = {**losses, "max_load": load.max(), "min_load": load.min()}
        return {f"moe/{name}": float(value) for name, value in values.items()}

    def state_dict(self) -> dict[str, Any]:
        return {name: part.tolist() for name, part in self._usage._asdict().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        device = self._usage.load.device
        self._usage = Usage(*(torch.tensor(state[name], device=device) for name in Usage._fields))


@dataclass
class LossTerms:
    """The loss of a micro-batch: its share of the global batch's."""

    objective: Tensor
    """What is minimised, 0-dim."""
    loss: Tensor
    """What is reported as train/loss, 0-dim."""
    metrics: dict[str, Tensor] = field(default_factory=dict)
    """What else is reported, as train/NAME; 0-dim, summed like the loss."""


class Loss:
    """Base of loss functions; the methods below `__call__` are optional."""

    metrics: Sequence[str] = ()
    """Names of the metrics, the same on all ranks and in every step."""
    balance: RouterBalance | None = None
    """The router's losses, for a model with experts."""

    def denominators(self, batch: TrainingBatch) -> list[float]:
        """Counts of this rank's batch, whose global sums are `totals`; first the targets: no update without any."""
        raise NotImplementedError

    def __call__(self, model: Any, part: TrainingBatch, totals: Sequence[float]) -> LossTerms:
        """The terms of a micro-batch, which is on the model's device."""
        raise NotImplementedError

    def finish(self, total: Callable[[Tensor], Tensor]) -> None:
        """Keep a step's use of experts for the next one, after the last micro-batch; `total` sums a tensor over the
        data-parallel ranks. Collective."""
        if self.balance is not None:
            self.balance.finish(total)

    def scalars(self) -> dict[str, float]:
        """Further entries of a row of metrics, after a logged step, e.g. moe/*; may wait for the device."""
        return {} if self.balance is None else self.balance.scalars()

    def state_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint: the use of experts."""
        return {} if self.balance is None else {"experts": self.balance.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`."""
        if self.balance is not None and state.get("experts") is not None:
            self.balance.load_state_dict(state["experts"])


class CrossEntropy(Loss):
    """Mean cross-entropy of the targets [nats/token], with the regularisers of pre-training.

    objective = sum of weights x cross-entropy / valid targets + z_loss x mean(logsumexp^2) + hoyer_loss x Hoyer penalty
                + the router's losses (`balance`, of a model with experts)
    """

    def __init__(self, z_loss: float = 0.0, hoyer_loss: float = 0.0, balance: RouterBalance | None = None):
        self._z_loss, self._hoyer_loss, self.balance = z_loss, hoyer_loss, balance
        self.metrics = ("hoyer",) if hoyer_loss else ()

    def denominators(self, batch: TrainingBatch) -> list[float]:
        """(valid targets, their weights counted; positions)."""
        valid = batch.targets != IGNORED
        count = valid if batch.weights is None else batch.weights.where(valid, 0)
        return [float(count.sum()), float(batch.targets.numel())]

    def __call__(self, model: Any, part: TrainingBatch, totals: Sequence[float]) -> LossTerms:
        valid, positions = totals[0] or 1.0, totals[1]
        model.measures_hoyer = bool(self._hoyer_loss)
        if part.weights is None:
            ce, lse2 = model(
                part.inputs,
                part.targets,
                z_loss=self._z_loss,
                ignore_index=IGNORED,
                valid_count=valid,
                position_count=positions,
            )
        else:
            logits = model(part.inputs).flatten(0, 1).float()
            losses = F.cross_entropy(logits, part.targets.flatten(), ignore_index=IGNORED, reduction="none")
            ce = (losses * part.weights.flatten()).sum() / valid
            lse2 = torch.logsumexp(logits, -1).square().sum() / positions
        loss = ce + self._z_loss * lse2
        if self.balance is not None:
            loss = loss + self.balance.loss(model.take_routing(), positions)
        metrics = {}
        if self._hoyer_loss:
            penalty = model.take_hoyer() * (part.targets.numel() / positions)
            loss = loss + self._hoyer_loss * penalty
            metrics["hoyer"] = penalty.detach()
        return LossTerms(loss, ce.detach(), metrics)
