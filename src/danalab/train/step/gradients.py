"""Gradients of one training step: micro-batches, global norm, clipping, finite check, loss scale of float16.

loss scale: gradients finite      ->  the factor doubles after 2000 such steps in a row
            gradients not finite  ->  the step is not made, the factor halves
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from danalab.models.shards import local_shard as local
from danalab.train.parallel.strategy import ParallelStrategy, whole_norms
from danalab.train.parallel.world import World
from danalab.train.step.loss import CrossEntropy, Loss, TrainingBatch


@dataclass
class StepResult:
    """Measurements of one step, 0-dim tensors on the device: reading one waits for the device."""

    loss: Tensor
    """Reported loss of the global batch; cross-entropy in nats/token."""
    grad_norm: Tensor
    """Euclidean norm of the gradient before clipping."""
    finite: Tensor
    """Whether loss and gradient norm are finite (bool)."""
    norms: Tensor
    """Norm of each parameter's gradient [parameters]."""
    metrics: dict[str, Tensor] = field(default_factory=dict)
    """What else the loss function reports, by name."""
    scale: Tensor | None = None
    """Loss scale; None outside float16."""
    empty: bool = False
    """The global batch has no target: there is no update, and `finite` is False."""


class GradientStep:
    """Computes the gradient of a global batch into the parameters' `.grad`, those of the optimizer in its order.

    Args:
        micro_batch: sequences at a time on this rank.
        seq_len: their length; a micro-batch of shorter ones has more, up to as many tokens. None: any length.
        grad_clip: 0 does not clip.
        autocast: makes the context manager of forward computations.
        loss_scale: for float16.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: list[Tensor],
        *,
        micro_batch: int,
        seq_len: int | None = None,
        grad_clip: float,
        loss: Loss,
        autocast: Callable[[], Any],
        strategy: ParallelStrategy | None = None,
        loss_scale: LossScale | None = None,
    ):
        self.model: Any = model
        self.micro_batch, self.seq_len = micro_batch, seq_len
        self._grad_clip, self._loss, self._scale = grad_clip, loss, loss_scale
        self.autocast, self.device = autocast, parameters[0].device
        self.strategy = strategy or ParallelStrategy(World.single())
        self.strategy.attach(parameters)

    def __call__(self, batch: TrainingBatch) -> StepResult:
        """Gradients of the loss of this rank's batch; earlier gradients must be gone. Collective."""
        loss, metrics, totals = self._accumulate(batch, self._loss)
        result = self._look(loss, metrics)
        if not totals[0]:
            result.empty, result.finite = True, torch.zeros_like(result.finite)
        return result

    def of_labels(self, batch: TrainingBatch) -> float:
        """Gradients of the mean cross-entropy, neither clipped nor checked; returns the valid targets. Collective."""
        _, _, totals = self._accumulate(batch, CrossEntropy())
        if self._scale is not None:
            self.strategy.scale_gradients(1 / self._scale.value)
        return totals[0]

    def _accumulate(self, batch: TrainingBatch, loss: Loss) -> tuple[Tensor, dict[str, Tensor], list[float]]:
        """(loss, metrics, totals) of the global batch; gradients are left in the parameters."""
        strategy = self.strategy
        totals = strategy.world.sums(loss.denominators(batch))
        total = torch.zeros((), device=self.device)
        metrics = {name: torch.zeros_like(total) for name in loss.metrics}
        longer = 1 if self.seq_len is None else max(1, self.seq_len // batch.inputs.shape[1])
        starts = range(0, len(batch), self.micro_batch * longer)
        for start in starts:
            part = batch.rows(slice(start, start + starts.step)).to(self.device)
            with strategy.micro_batch(start == starts[-1]):
                with self.autocast():
                    terms = loss(self.model, part, totals)
                objective = terms.objective
                if strategy.loss_factor != 1:
                    objective = objective * strategy.loss_factor
                if self._scale is not None:
                    objective = objective * self._scale.value
                objective.backward()
            total += terms.loss.detach()
            for name, value in terms.metrics.items():
                metrics[name] += value
        strategy.finish()
        loss.finish(strategy.total)
        return strategy.total(total), {name: strategy.total(value) for name, value in metrics.items()}, totals

    def _look(self, loss: Tensor, metrics: dict[str, Tensor]) -> StepResult:
        scale = None if self._scale is None else self._scale.value
        norms = self.strategy.gradient_norms()
        if scale is not None:
            norms = norms / scale
        norm = torch.linalg.vector_norm(norms)
        finite = torch.isfinite(loss) & torch.isfinite(norm)
        factor = torch.clamp(self._grad_clip / (norm + 1e-6), max=1.0) if self._grad_clip else None
        if scale is not None:
            factor = (1.0 if factor is None else factor) / scale
        if factor is not None:
            self.strategy.scale_gradients(factor)
        if self._scale is not None:
            self._scale.update(finite)
        return StepResult(loss, norm, finite, norms, metrics, scale)


class UpdateNorm:
    """Euclidean norm of the difference between the weights before and after an update."""

    def __init__(self, parameters: list[Tensor]):
        self._parameters = parameters
        self._before: list[Tensor] | None = None

    def before(self) -> None:
        """Copy the weights; the copy lives until `after`."""
        self._before = [p.detach().clone() for p in self._parameters]

    def after(self) -> Tensor | None:
        """The norm since `before`, 0-dim, over all ranks' weights; None without `before`. Collective."""
        if self._before is None:
            return None
        before, self._before = self._before, None
        torch._foreach_sub_([local(p) for p in before], [local(p.detach()) for p in self._parameters])
        return torch.linalg.vector_norm(whole_norms(before))


FIRST, INTERVAL = 2.0**16, 2000


class LossScale:
    """The factor on the loss, kept on the device so that nothing waits for it."""

    def __init__(self, device: torch.device):
        self.value = torch.full((), FIRST, device=device)
        """0-dim float32; never below 1."""
        self._good = torch.zeros((), dtype=torch.int32, device=device)

    @torch.no_grad()
    def update(self, finite: Tensor) -> None:
        """Adapt the factor after a step. `finite`: 0-dim bool, on the device."""
        self._good = (self._good + 1).where(finite, 0)
        grows = self._good >= INTERVAL
        self._good = self._good.where(~grows, 0)
        self.value = torch.where(finite, self.value.where(~grows, self.value * 2), self.value / 2).clamp(
            min=1.0
        )

    def state_dict(self) -> dict[str, Any]:
        return {"value": float(self.value), "good": int(self._good)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value.fill_(state["value"])
        self._good.fill_(state["good"])
