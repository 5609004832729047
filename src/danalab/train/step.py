"""One training step up to the update: micro-batches, gradients, global norm, clip, finite check.

    loss = sum over all micro-batches of (sum of token losses) / valid targets of the whole global batch

so that neither accumulation nor masking changes the gradient. A target of -1 is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

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
    """Norm of each parameter's gradient [parameters that have one], to find the culprits."""


class GradientStep:
    """Computes the gradient of a global batch into the parameters' `.grad`."""

    def __init__(
        self,
        model: nn.Module,
        parameters: list[Tensor],
        *,
        micro_batch: int,
        grad_clip: float,
        z_loss: float,
        autocast: Callable[[], Any],
    ):
        """`autocast()` is a context manager; `grad_clip` 0 does not clip; `micro_batch` [sequences]."""
        self._model = model
        self._parameters = parameters
        self._micro_batch = micro_batch
        self._grad_clip = grad_clip
        self._z_loss = z_loss
        self._autocast = autocast
        self._device = parameters[0].device

    def __call__(self, inputs: Tensor, targets: Tensor) -> StepResult:
        """Gradients of the loss of `inputs`, `targets` [sequences, length]; earlier gradients must be gone."""
        valid = (targets != IGNORED).sum()  # on the host, where the batch is
        counts = {"valid_count": float(valid), "position_count": float(targets.numel())}
        total = torch.zeros((), device=self._device)
        for micro_inputs, micro_targets in self._micro_batches(inputs, targets):
            with self._autocast():
                ce, lse2 = self._model(micro_inputs, micro_targets, z_loss=self._z_loss, ignore_index=IGNORED, **counts)
                loss = ce + self._z_loss * lse2
            loss.backward()
            total += ce.detach()
        grads = [p.grad for p in self._parameters if p.grad is not None]
        norms = torch.stack(torch._foreach_norm(grads))
        norm = torch.linalg.vector_norm(norms)
        finite = torch.isfinite(total) & torch.isfinite(norm)
        if self._grad_clip:
            torch.nn.utils.clip_grads_with_norm_(self._parameters, self._grad_clip, norm)
        return StepResult(total, norm, finite, norms)

    def _micro_batches(self, inputs: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, inputs.shape[0], self._micro_batch):
            part = slice(start, start + self._micro_batch)
            yield (
                inputs[part].to(self._device, non_blocking=True),
                targets[part].to(self._device, non_blocking=True),
            )


class UpdateNorm:
    """Euclidean norm of what a step does to all weights, by comparing them before and after; for the steps logged."""

    def __init__(self, parameters: list[Tensor]):
        self._parameters = parameters
        self._before: list[Tensor] | None = None

    def before(self) -> None:
        """Remember the weights (memory of one copy until `after`)."""
        self._before = [p.detach().clone() for p in self._parameters]

    def after(self) -> Tensor | None:
        """The norm since `before`, 0-dim; None where it was not called."""
        if self._before is None:
            return None
        before, self._before = self._before, None
        torch._foreach_sub_(before, [p.detach() for p in self._parameters])
        return torch.nn.utils.get_total_norm(before)
