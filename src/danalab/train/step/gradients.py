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
from danalab.train.step.loss import IGNORED, CrossEntropy, Loss, TrainingBatch


@dataclass
class StepResult:
    """Measurements of one step, most of them 0-dim tensors on the device."""

    loss: Tensor
    """Reported loss of the global batch; cross-entropy in nats/token."""
    grad_norm: Tensor
    """Euclidean norm of the gradient before clipping."""
    finite: bool
    """Whether loss and gradient norm are finite; the host waits for the device to know."""
    norms: Tensor
    """Norm of each parameter's gradient [parameters]."""
    metrics: dict[str, Tensor] = field(default_factory=dict)
    """What else the loss function reports, by name."""
    scale: float | None = None
    """Loss scale; None outside float16."""
    empty: bool = False
    """The global batch has no target: there is no update."""


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
        self.strategy = strategy or ParallelStrategy(World())
        self.strategy.attach(parameters)

    def __call__(self, batch: TrainingBatch) -> StepResult:
        """Gradients of the loss of this rank's batch; earlier gradients must be gone. Collective."""
        loss, metrics, totals = self._accumulate(batch, self._loss)
        result = self._look(loss, metrics)
        result.empty = not totals[0]
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
        scale: float | None = None if self._scale is None else self._scale.value
        norms = self.strategy.gradient_norms()
        if scale is not None:
            norms = norms / scale
        norm = torch.linalg.vector_norm(norms)
        finite = bool(torch.isfinite(loss) & torch.isfinite(norm))
        factor = torch.clamp(self._grad_clip / (norm + 1e-6), max=1.0) if self._grad_clip else 1.0
        if self._grad_clip or scale:
            self.strategy.scale_gradients(factor / (scale or 1.0))
        if self._scale is not None:
            self._scale.update(finite)
        return StepResult(loss, norm, finite, norms, metrics, scale)


def update_norm(before: list[Tensor], parameters: list[Tensor]) -> Tensor:
    """Euclidean norm, 0-dim, of how far `parameters` are from copies of them, which are overwritten. Collective."""
    torch._foreach_sub_([local(p) for p in before], [local(p.detach()) for p in parameters])
    return torch.linalg.vector_norm(whole_norms(before))


FIRST, INTERVAL = 2.0**16, 2000


@dataclass
class LossScale:
    """The factor on the loss."""

    value: float = FIRST
    """Never below 1."""
    good: int = 0
    """Steps in a row with finite gradients."""

    def update(self, finite: bool) -> None:
        """Adapt the factor after a step."""
        self.good = self.good + 1 if finite else 0
        if not finite:
            self.value = max(1.0, self.value / 2)
        elif self.good == INTERVAL:
            self.value, self.good = 2 * self.value, 0


LOGITS_AT_ONCE = 2**28
"""Logits in memory at a time: 1 GiB in float32."""


class CurvatureEstimator:
    """Gives the optimizer an estimate of the curvature before the steps that need one: Gauss-Newton-Bartlett.

    y_i ~ softmax(logits_i)          labels of one micro-batch, a function of seed, step and rank
    s   = gradient of the mean cross-entropy of y          n s^2 estimates the Gauss-Newton matrix's diagonal
    """

    def __init__(self, gradients: GradientStep, optimizer: Any, *, seed: int, vocab_size: int):
        self._gradients, self._optimizer, self._seed = gradients, optimizer, seed
        self._rows = LOGITS_AT_ONCE // vocab_size

    def before_step(self, step: int, batch: TrainingBatch) -> None:
        """Estimate, where one is due after `step` steps, at the current weights. Collective.

        The gradients are empty before and after. `batch` is this rank's part of the next step's; positions without a
        target draw no label.
        """
        optimizer = self._optimizer
        if not hasattr(optimizer, "update_hessian") or not optimizer.hessian_is_due():
            return
        part = batch.rows(slice(0, self._gradients.micro_batch))
        labels = self._draw(step, part.inputs, part.targets)
        optimizer.update_hessian(self._gradients.of_labels(TrainingBatch(part.inputs, labels)))
        optimizer.zero_grad()

    @torch.no_grad()
    def _draw(self, step: int, inputs: Tensor, targets: Tensor) -> Tensor:
        """Labels [sequences, length] from the model's own distribution; -1 where there is no target."""
        generator = torch.Generator(self._gradients.device)
        # Ranks of one tensor-parallel group have the same data and must draw the same labels.
        rank = self._gradients.strategy.world.dp_rank
        generator.manual_seed(((self._seed * 1_000_003 + step) * 65_537 + rank) % 2**64)
        sequences = max(1, self._rows // inputs.shape[1])
        labels = []
        with self._gradients.strategy.evaluating():
            for start in range(0, inputs.shape[0], sequences):
                with self._gradients.autocast():
                    logits = self._gradients.model(
                        inputs[start : start + sequences].to(self._gradients.device)
                    )
                odds = torch.softmax(logits.float(), dim=-1).flatten(0, 1)
                # A diverged model has no distribution; its step is skipped, so any label will do.
                odds = torch.nan_to_num(odds, nan=1.0)
                labels.append(torch.multinomial(odds, 1, generator=generator).view(logits.shape[:-1]))
        return torch.where(targets.to(self._gradients.device) == IGNORED, IGNORED, torch.cat(labels))
