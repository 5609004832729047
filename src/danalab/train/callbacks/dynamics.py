"""Norms of weights, gradients and updates of each parameter, and angular updates.

With W, W' the weights before and after an update and D = W' - W: a matrix is flattened to rows (neurons) x the rest;
angles are between W and W' as vectors [rad]; rows are summarised by the mean of their angles.
"""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from danalab.optim.distributed.dtensor.layout import whole_of
from danalab.train.callbacks.base import CallbackContext, RowsCallback
from danalab.train.parallel.strategy import ParallelStrategy

EPS = 1e-12


class Dynamics(RowsCallback):
    """Writes `dynamics.jsonl`, a row each logged step: `{"step": ..., "PARAMETER/norm": ..., ...}`.

    Two and more dimensions: norm, grad_norm, update_norm, relative_update = |D|/|W|, angular_update,
    neuron_angular_update (mean over rows), grad_alignment = cos(gradient, W) (not with zero, whose gradients are in
    parts), histogram (of |W| / rms). Fewer: rms, grad_rms, update_rms.
    Costs a copy of the weights during the logged steps.
    """

    name = "dynamics"

    def __init__(
        self,
        file: Path,
        named_parameters: Iterable[tuple[str, Tensor]],
        strategy: ParallelStrategy,
        *,
        writes: bool = True,
    ):
        """Args:
        strategy: knows the gradients of the parameters, which are attached to it before the first step.
        """
        super().__init__(file, writes=writes)
        self._parameters = [(name, p) for name, p in named_parameters if p.requires_grad]
        self._strategy = strategy
        self._before: list[Tensor] = []
        self._row: dict[str, Any] = {}

    @classmethod
    def build(cls, context: CallbackContext) -> "Dynamics":
        file, named = context.folder / "dynamics.jsonl", context.model.named_parameters()
        return cls(file, named, context.strategy, writes=context.writes)

    def before_update(self, step: int, logged: bool) -> None:
        """Copy the weights and measure the gradients."""
        if not logged:
            return
        self._row = {}
        self._before = [p.detach().clone() for _, p in self._parameters]
        norms = {id(p): norm for p, norm in self._strategy.norm_of_each_gradient()}
        for name, p in self._parameters:
            if p.ndim >= 2:
                self._row[f"{name}/grad_norm"] = norms[id(p)]
                if p.grad is not None:
                    self._row[f"{name}/grad_alignment"] = _cosine(whole_of(p.grad), whole_of(p.detach()))
            else:
                self._row[f"{name}/grad_rms"] = norms[id(p)] / math.sqrt(p.numel())

    def after_update(self, step: int, logged: bool) -> None:
        """Measure the update and write the row."""
        if not logged:
            return
        for (name, p), before in zip(self._parameters, self._before, strict=True):
            old, new = whole_of(before).double(), whole_of(p).double()
            self._row |= {f"{name}/{key}": value for key, value in update_statistics(old, new).items()}
        self._before = []  # frees the memory
        self.write({"step": step, **dict(sorted(self._row.items()))})

    def on_skip(self, step: int) -> None:
        self._before = []


def update_statistics(old: Tensor, new: Tensor) -> dict[str, Any]:
    """Statistics of the update of one parameter; see the module's docstring. `old`, `new`: equal shapes, float64."""
    update = new - old
    if old.ndim < 2:
        return {"rms": _rms(new), "update_rms": _rms(update)}
    norm, moved = float(torch.linalg.vector_norm(old)), float(torch.linalg.vector_norm(update))
    rows = angles(old.flatten(1), new.flatten(1))
    return {
        "norm": float(torch.linalg.vector_norm(new)),
        "update_norm": moved,
        "relative_update": (moved + EPS) / (norm + EPS),
        "angular_update": float(angles(old.flatten()[None], new.flatten()[None])[0]),
        "neuron_angular_update": float(rows.mean()),
        "histogram": histogram(new),
    }


def histogram(weights: Tensor) -> list[int]:
    """Number of weights by log2(|w| / rms): 16 bins of width 1 from -12 to 4; the outer bins include the rest."""
    scale = (weights.abs() / (_rms(weights) + EPS)).log2().nan_to_num(-12).clamp(-12, 4 - 1e-6)
    # Not torch.histc, which has no deterministic kernel for GPUs.
    return torch.bincount((scale.flatten().floor() + 12).long(), minlength=16).tolist()


def _cosine(a: Tensor, b: Tensor) -> float:
    a, b = a.double().flatten(), b.double().flatten()
    return float(a @ b / (torch.linalg.vector_norm(a) * torch.linalg.vector_norm(b) + EPS))


def angles(a: Tensor, b: Tensor) -> Tensor:
    """Angle between rows [rad], float64 [rows]; 0 for a row of zeros.

    2 atan2(|a/|a| - b/|b||, |a/|a| + b/|b||), which unlike the arc cosine is accurate at the small angles of a training
    step (W. Kahan).
    """
    a = torch.nn.functional.normalize(a, dim=1, eps=EPS)
    b = torch.nn.functional.normalize(b, dim=1, eps=EPS)
    apart, together = torch.linalg.vector_norm(a - b, dim=1), torch.linalg.vector_norm(a + b, dim=1)
    return 2 * torch.atan2(apart, together)


def _rms(x: Tensor) -> float:
    return float(x.square().mean().sqrt())
