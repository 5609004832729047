"""Ways to compute a step: eager (plain, the reference), foreach (lists), fused (one compiled pass over memory)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from danalab.optim.batch import Batch
from danalab.optim.functional import rounding_seed, stochastic_round
from danalab.optim.rules import Rule
from danalab.optim.state import moment_dtype

Way = Callable[[Rule, list[Batch]], None]


def eager(rule: Rule, batches: list[Batch]) -> None:
    """The pure update, one parameter at a time."""
    for batch in batches:
        scalars = batch.scalars(rule)
        for p, g, moments, index in zip(batch.params, batch.signed_grads(), batch.moments, batch.indices, strict=True):
            new_p, *new_moments = rule.update(p, g, *moments, **scalars)
            for moment, new in zip(moments, new_moments, strict=True):
                moment.copy_(new)
            _store(p, new_p, batch, index)


def foreach(rule: Rule, batches: list[Batch]) -> None:
    """The update on lists: a few kernels for all parameters of a batch."""
    for batch in batches:
        dtype = moment_dtype(batch.params[0])
        wide = [p.to(dtype) for p in batch.params]  # the parameters themselves where they are wide enough
        grads = [g.to(dtype) for g in batch.signed_grads()]
        rule.foreach(wide, grads, *map(list, zip(*batch.moments, strict=True)), **batch.scalars(rule))
        for p, new_p, index in zip(batch.params, wide, batch.indices, strict=True):
            if new_p is not p:
                _store(p, new_p, batch, index)


def _store(p: Tensor, new_p: Tensor, batch: Batch, index: int) -> None:
    """Write the new value, rounded once to the parameter's dtype."""
    if batch.group["stochastic_rounding"] and p.dtype in (torch.bfloat16, torch.float16):
        rounded = stochastic_round(new_p, p.dtype, rounding_seed(batch.t, index))
        new_p = rounded if batch.skip is None else torch.where(batch.skip, p, rounded)
    p.copy_(new_p)


def choose(group: Mapping[str, Any], device: torch.device, numel: int) -> Way:
    """The way for a group, as its flags say, or else by device and size."""
    return foreach if group["foreach"] else eager
