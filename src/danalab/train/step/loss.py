"""Loss functions. The loss of a global batch is the sum of the losses of its micro-batches on all ranks.

    totals = sum of `denominators` over the ranks          loss = sum over micro-batches of part / totals

so neither accumulation, number of ranks nor masking changes the gradient.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from danalab.train.step.batch import IGNORED, Batch
from danalab.train.step.router_balance import RouterBalance


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

    def denominators(self, batch: Batch) -> list[float]:
        """Counts of this rank's batch, that of the targets first. Their sums over the global batch are the `totals` of
        `__call__`; without any target there is no update.
        """
        raise NotImplementedError

    def __call__(self, model: Any, part: Batch, totals: Sequence[float]) -> LossTerms:
        """The terms of a micro-batch, which is on the model's device."""
        raise NotImplementedError

    def finish(self, total: Callable[[Tensor], Tensor]) -> None:
        """After the last micro-batch of a step: keep the use of experts for the next one. `total` sums a tensor over
        the data-parallel ranks. Collective.
        """
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
    """Mean cross-entropy of the targets [nats a token], with the regularisers of pre-training.

    objective = sum of weights x cross-entropy / valid targets + z_loss x mean(logsumexp^2) + hoyer_loss x Hoyer penalty
                + the router's losses
    """

    def __init__(self, z_loss: float = 0.0, hoyer_loss: float = 0.0, balance: RouterBalance | None = None):
        """Args:
        z_loss, hoyer_loss: weights of the regularisers.
        balance: the router's losses, for a model with experts.
        """
        self._z_loss, self._hoyer_loss, self.balance = z_loss, hoyer_loss, balance
        self.metrics = ("hoyer",) if hoyer_loss else ()

    def denominators(self, batch: Batch) -> list[float]:
        """(valid targets, their weights counted; positions)."""
        valid = batch.targets != IGNORED
        count = valid if batch.weights is None else batch.weights.where(valid, 0)
        return [float(count.sum()), float(batch.targets.numel())]

    def __call__(self, model: Any, part: Batch, totals: Sequence[float]) -> LossTerms:
        valid, positions = totals[0] or 1.0, totals[1]
        model.measures_hoyer = bool(self._hoyer_loss)
        if part.weights is None:
            ce, lse2 = model(
                part.inputs, part.targets, z_loss=self._z_loss, ignore_index=IGNORED, valid_count=valid,
                position_count=positions,
            )  # fmt: skip
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
