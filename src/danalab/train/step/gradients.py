"""One training step up to the update: micro-batches, gradients, global norm, clip, finite check.

    loss = sum over all ranks and micro-batches of (sum of token losses) / valid targets of the whole global batch

so that neither accumulation, number of ranks nor masking changes the gradient. A target of -1 is not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from danalab.optim.core.state import local
from danalab.train.parallel.norms import whole_norm
from danalab.train.parallel.strategy import ParallelStrategy
from danalab.train.parallel.world import World
from danalab.train.step.loss_scale import LossScale
from danalab.train.step.router_balance import RouterBalance

IGNORED = -1
"""Target that carries no loss: padding, or another speaker's words."""


@dataclass
class StepResult:
    """What a step saw; 0-dim tensors on the device, so that looking is the reader's choice."""

    loss: Tensor
    """Mean cross-entropy over the valid targets of the global batch [nats a token]."""
    grad_norm: Tensor
    """Euclidean norm of the whole gradient before clipping."""
    finite: Tensor
    """Whether loss and gradient norm are finite (bool)."""
    norms: Tensor
    """Norm of each parameter's gradient [parameters], to find the culprits."""
    hoyer: Tensor | None = None
    """Mean over positions of the Hoyer penalty of the embedded tokens; None where it has no weight."""
    scale: Tensor | None = None
    """What the loss was multiplied by; None outside float16."""


class GradientStep:
    """Computes the gradient of a global batch into the parameters' `.grad`."""

    def __init__(
        self,
        model: nn.Module,
        parameters: list[Tensor],
        *,
        micro_batch: int,
        seq_len: int | None = None,
        grad_clip: float,
        z_loss: float,
        hoyer_loss: float = 0.0,
        autocast: Callable[[], Any],
        strategy: ParallelStrategy | None = None,
        loss_scale: LossScale | None = None,
        balance: RouterBalance | None = None,
    ):
        """Args:
        parameters: those of the optimizer, in its order.
        micro_batch: sequences at a time on this rank.
        seq_len: their length; of shorter ones as many more are taken at a time. None: whatever the length.
        grad_clip: 0 does not clip.
        z_loss, hoyer_loss: weights of the two regularisers.
        autocast: makes the context manager of forward computations.
        strategy: among which ranks; default one process alone.
        loss_scale: for float16.
        balance: the router's losses, for a model that has experts.
        """
        self._model: Any = model
        self._micro_batch = micro_batch
        self._seq_len = seq_len
        self._grad_clip = grad_clip
        self._z_loss, self._hoyer_loss = z_loss, hoyer_loss
        self._autocast = autocast
        self._device = parameters[0].device
        self._scale = loss_scale
        self._balance = balance
        self._strategy = strategy or ParallelStrategy(World.single())
        self._strategy.attach(parameters)

    def __call__(self, inputs: Tensor, targets: Tensor) -> StepResult:
        """Gradients of the loss of this rank's `inputs`, `targets` [sequences, length]; earlier gradients must be gone.

        Collective.
        """
        loss, hoyer, _ = self._accumulate(inputs, targets, self._z_loss, self._hoyer_loss, self._balance)
        return self._look(loss, hoyer if self._hoyer_loss else None)

    def of_labels(self, inputs: Tensor, labels: Tensor) -> float:
        """Gradients of the plain mean cross-entropy of `labels`, not clipped nor regularised; how many labels count.

        What is not finite stays so. Collective.
        """
        _, _, counted = self._accumulate(inputs, labels, 0.0, 0.0, None)
        if self._scale is not None:
            self._strategy.scale_gradients(1 / self._scale.value)
        return counted

    def _accumulate(
        self, inputs: Tensor, targets: Tensor, z_loss: float, hoyer_loss: float, balance: RouterBalance | None
    ) -> tuple[Tensor, Tensor, float]:
        """(mean cross-entropy, mean Hoyer penalty, valid targets) of the global batch.

        Gradients are left in the parameters.
        """
        strategy = self._strategy
        valid, positions = strategy.world.sums([float((targets != IGNORED).sum()), float(targets.numel())])
        counts = {"valid_count": valid, "position_count": positions}
        total = torch.zeros((), device=self._device)
        hoyer = torch.zeros_like(total)
        self._model.measures_hoyer = bool(hoyer_loss)
        longer = 1 if self._seq_len is None else max(1, self._seq_len // inputs.shape[1])
        starts = range(0, inputs.shape[0], self._micro_batch * longer)
        for start in starts:
            part = slice(start, start + starts.step)
            micro_inputs = inputs[part].to(self._device, non_blocking=True)
            micro_targets = targets[part].to(self._device, non_blocking=True)
            with strategy.micro_batch(start == starts[-1]):
                with self._autocast():
                    ce, lse2 = self._model(micro_inputs, micro_targets, z_loss=z_loss, ignore_index=IGNORED, **counts)
                    loss = ce + z_loss * lse2
                    if balance is not None:
                        loss = loss + balance.loss(self._model.take_routing(), positions)
                    if hoyer_loss:
                        penalty = self._model.take_hoyer() * (micro_targets.numel() / positions)
                        loss = loss + hoyer_loss * penalty
                        hoyer += penalty.detach()
                if strategy.loss_factor != 1:
                    loss = loss * strategy.loss_factor
                if self._scale is not None:
                    loss = loss * self._scale.value
                loss.backward()
            total += ce.detach()
        strategy.finish()
        if balance is not None:
            balance.finish(strategy.total)
        return strategy.total(total), strategy.total(hoyer) if hoyer_loss else hoyer, valid

    def _look(self, loss: Tensor, hoyer: Tensor | None) -> StepResult:
        """Norms and the finite check of what was computed; clips."""
        scale = None if self._scale is None else self._scale.value
        norms = self._strategy.gradient_norms()
        if scale is not None:
            norms = norms / scale
        norm = torch.linalg.vector_norm(norms)
        finite = torch.isfinite(loss) & torch.isfinite(norm)
        factor = torch.clamp(self._grad_clip / (norm + 1e-6), max=1.0) if self._grad_clip else None
        if scale is not None:
            factor = (1.0 if factor is None else factor) / scale
        if factor is not None:
            self._strategy.scale_gradients(factor)
        if self._scale is not None:
            self._scale.update(finite)
        return StepResult(loss, norm, finite, norms, hoyer, scale)


class UpdateNorm:
    """Euclidean norm of what a step does to all weights, by comparing them before and after; for the steps logged."""

    def __init__(self, parameters: list[Tensor]):
        self._parameters = parameters
        self._before: list[Tensor] | None = None

    def before(self) -> None:
        """Remember the weights (memory of one copy until `after`)."""
        self._before = [p.detach().clone() for p in self._parameters]

    def after(self) -> Tensor | None:
        """The norm since `before`, 0-dim, over all ranks' weights (collective); None where it was not called."""
        if self._before is None:
            return None
        before, self._before = self._before, None
        torch._foreach_sub_([local(p) for p in before], [local(p.detach()) for p in self._parameters])
        return whole_norm(before)
