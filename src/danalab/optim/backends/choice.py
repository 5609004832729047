"""Ways to compute a step: eager (plain, the reference), foreach (lists), fused (one compiled pass over memory)."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import Any

import torch
from torch import Tensor

from danalab.errors import UserError
from danalab.optim.backends import compiled, native
from danalab.optim.backends.blocks import SMALL, SameMemory, in_blocks
from danalab.optim.backends.foreach import Many, fresh
from danalab.optim.backends.rounding import store_rounded
from danalab.optim.core.batch import Batch
from danalab.optim.core.rule import Rule
from danalab.optim.core.state import moment_dtype

log = logging.getLogger(__name__)

Way = Callable[[Rule, list[Batch]], None]

WORTH_COMPILING = 1 << 20
"""Elements from which on an optimizer on a CPU with `fused=None` uses the compiled kernels: for fewer, compiling them,
if only once per machine, is not worth the time it saves."""


def eager(rule: Rule, batches: list[Batch]) -> None:
    """The pure update, one parameter at a time."""
    for batch in batches:
        each = zip(batch.params, batch.signed_grads(), batch.moments, batch.scalars_each(rule), strict=True)
        for i, (p, g, moments, scalars) in enumerate(each):
            new_p, *new_moments = rule.update(p, g, *moments, **scalars)
            for moment, new in zip(moments, new_moments, strict=True):
                moment.copy_(new)
            store_rounded(p, new_p, batch, i)


def foreach(rule: Rule, batches: list[Batch]) -> None:
    """The update in place: on a GPU a few kernels for all parameters of a batch, on a CPU block after block."""
    for batch in batches:
        dtype = moment_dtype(batch.params[0])
        wide = [p.to(dtype) for p in batch.params]  # the parameters themselves where they are wide enough
        grads = [g.to(dtype) for g in batch.signed_grads()]
        scalars = batch.scalars(rule)
        lists = [wide, grads, *map(list, zip(*batch.moments, strict=True))]
        if not rule.elementwise:
            rule.foreach(*lists, **scalars)
        elif wide[0].is_cpu:
            _foreach_on_cpu(rule, lists, scalars)
        else:
            rule.foreach(fresh, *map(Many, lists), **scalars)
        for i, (p, new_p) in enumerate(zip(batch.params, wide, strict=True)):
            if new_p is not p:
                store_rounded(p, new_p, batch, i)


def _foreach_on_cpu(rule: Rule, lists: Sequence[Sequence[Tensor]], scalars: Mapping[str, Any]) -> None:
    """Small tensors together, blocks of the large ones one after another."""
    small = [p.numel() <= SMALL for p in lists[0]]
    large = [not is_small for is_small in small]
    if any(small):
        rule.foreach(fresh, *(Many(list(compress(tensors, small))) for tensors in lists), **scalars)
    memory = SameMemory()
    for block in in_blocks([list(compress(tensors, large)) for tensors in lists]):
        memory.start_block()
        rule.foreach(memory, *block, **scalars)


def choose(flags: Mapping[str, Any], device: str, numel: int) -> Way:
    """The way that a group's flags ask for, or else the sensible one for the device and the optimizer's size.

    Args:
        numel: elements of all parameters of the optimizer.
    """
    if flags["fused"]:
        # The kernels for CPUs take clocks that the host can read.
        return native.fused if device == "cpu" and not flags["capturable"] else compiled.fused
    if flags["foreach"]:
        return foreach
    if flags["foreach"] is False or flags["capturable"]:
        return eager
    if device != "cpu":
        return foreach
    if flags["fused"] is None and numel >= WORTH_COMPILING and _native_is_there():
        return native.fused
    return eager


def require_fused(device: str) -> None:
    """Make sure, before a run starts, that `fused=True` can be had.

    Raises:
        UserError: there is no compiler for the device, or it fails.
    """
    if device == "cpu":
        native.library()
    elif not torch._inductor.utils.has_triton():  # pyright: ignore[reportAttributeAccessIssue]
        raise UserError(f"fused=True on {device} needs Triton, which is not installed; use fused=False")


@functools.cache
def _native_is_there() -> bool:
    try:
        native.library()
    except UserError as error:
        log.warning("the fused optimizer step is not available, steps will take several times longer: %s", error)
        return False
    return True
