"""The step that checkpoint helpers make to see what state an optimizer has: zero gradients, zero learning rate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

_decided: ContextVar[bool | None] = ContextVar("rehearsal", default=None)


@contextmanager
def decided(answer: bool) -> Iterator[None]:
    """Within, `is_rehearsal` answers so: for callers that know what a rank cannot see in its own gradients."""
    token = _decided.set(answer)
    try:
        yield
    finally:
        _decided.reset(token)


def is_rehearsal(groups: Iterable[Mapping[str, Any]]) -> bool:
    """Whether this is such a step. They mean it to create state only; taken for a real one it would move clocks.

    Ranks agree: they have the same learning rates, and gradients that are spread are summed over them.
    """
    answer = _decided.get()
    if answer is not None:
        return answer
    groups = list(groups)
    if not has_zero_rate(groups):
        return False
    grads = [p.grad for group in groups for p in group["params"] if p.grad is not None]
    return not any(_any_nonzero(g) for g in grads)


def has_zero_rate(groups: Iterable[Mapping[str, Any]]) -> bool:
    """Whether all learning rates are zero, as far as can be told without waiting for a device."""
    groups = list(groups)
    if any(isinstance(group["lr"], Tensor) and group["lr"].device.type != "cpu" for group in groups):
        return False
    if any(float(group["lr"]) != 0 for group in groups):
        return False
    return not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def _any_nonzero(g: Tensor) -> bool:
    if g.layout != torch.strided:
        return True
    total = g.abs().sum()
    # A rank's own shard may be zero where another's is not, and the ranks must agree.
    full = getattr(total, "full_tensor", None)
    return bool((full() if full is not None else total) != 0)
