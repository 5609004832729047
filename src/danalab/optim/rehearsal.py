"""The step that checkpoint helpers make to see what state an optimizer has: zero gradients, zero learning rate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor


def is_rehearsal(groups: Iterable[Mapping[str, Any]]) -> bool:
    """Whether this is such a step. They mean it to create state only; taken for a real one it would move clocks.

    Ranks agree: they have the same learning rates, and gradients that are spread are summed over them.
    """
    groups = list(groups)
    if any(isinstance(group["lr"], Tensor) and group["lr"].device.type != "cpu" for group in groups):
        return False
    if any(float(group["lr"]) != 0 for group in groups):
        return False
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return False
    grads = [p.grad for group in groups for p in group["params"] if p.grad is not None]
    return not any(_any_nonzero(g) for g in grads)


def _any_nonzero(g: Tensor) -> bool:
    if g.layout != torch.strided:
        return True
    total = g.abs().sum()
    # A rank's own shard may be zero where another's is not, and the ranks must agree.
    full = getattr(total, "full_tensor", None)
    return bool((full() if full is not None else total) != 0)
