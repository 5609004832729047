"""The back ends of an optimizer step, and which one a group's flags choose.

eager      the pure update, one parameter at a time: the reference; every rule has it
foreach    lists of tensors (`rules.foreach`)
native     one pass over memory by a C++ kernel, on CPUs (`backends.native`)
triton     one pass over memory by a Triton kernel, on CUDA devices (`backends.triton_step`)
compiled   one pass over memory by torch.compile: other devices, and rules without a kernel

Moments of fewer bytes are updated by the CPU kernel as they are, else decoded to float32, updated, and rounded.
"""

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from danalab.errors import UserError
from danalab.optim.rules.rule import Rule
from danalab.optim.step.backends import native, triton_step
from danalab.optim.step.backends.kernel_library import library
from danalab.optim.step.backends.plain import compiled, eager, foreach
from danalab.optim.step.backends.rounding import element_noise, hash32, rounding_seed
from danalab.optim.step.batch import TensorBatch
from danalab.optim.step.state_formats import REST, decode, encode, join, split, stored_shapes

log = logging.getLogger(__name__)

Backend = Callable[[Rule, list[TensorBatch]], None]


def choose_backend(rule: Rule, flags: Mapping[str, Any], device: str) -> Backend:
    """The back end that a group's flags ask for, or else the fastest that the rule has on the device.

    The choice does not depend on sizes: back ends differ in the last bit, and ranks hold parts of different sizes.
    """
    if flags["foreach"]:
        return foreach
    if flags["fused"] or (flags["fused"] is None and flags["foreach"] is None):
        # The kernels for CPUs take step counts that the host can read.
        if device == "cpu" and not flags["capturable"] and (flags["fused"] or _has_native_kernel(rule)):
            return native.fused
        if device == "cuda" and triton_step.can_run(rule, flags):
            return triton_step.fused
        if flags["fused"]:
            return compiled
    if device == "cpu" or flags["foreach"] is False or flags["capturable"]:
        return eager
    return foreach if rule.foreach else eager


def call_of(backend: Backend) -> Callable[..., Any] | None:
    """The kernel call of a back end whose steps can be repeated; None: it has none, or the host cannot count steps."""
    if backend is native.fused:
        return native.KernelCall
    return triton_step.KernelLaunch if backend is triton_step.fused and _kernels_are_available() else None


def require_backend(owner: str, rule: Rule, flags: Mapping[str, Any], devices: Iterable[str]) -> None:
    """Make sure, before a run starts, that the back end that a group's flags name can be used."""
    if flags["foreach"] and rule.foreach is None:
        raise UserError(f"{owner}: it has no foreach back end; leave foreach=True out")
    for device in devices if flags["fused"] else ():
        if device == "cpu" and not flags["capturable"]:
            if rule.kernel_scalars is None:
                raise UserError(f"{owner}: it has no kernel for CPUs; leave fused=True out")
            library()
        elif device != "cpu" and not triton_step.is_installed():
            raise UserError(f"fused=True on {device} needs Triton, which is not installed; use fused=False")


def _has_native_kernel(rule: Rule) -> bool:
    return rule.kernel_scalars is not None and _kernels_are_available()


@functools.cache
def _kernels_are_available() -> bool:
    try:
        library()
    except UserError as error:
        log.warning("the fused optimizer step is not available, steps will take several times longer: %s", error)
        return False
    return True


PART = 1 << 24
"""Elements whose moments are float32 at the same time; a larger parameter is a part of its own."""


def step_by_format(rule: Rule, batches: Sequence[TensorBatch], backend: Backend) -> None:
    """The update of all batches by a back end: in parts where it does not read their format."""
    whole, others = list[TensorBatch](), list[TensorBatch]()
    for batch in batches:
        as_stored = batch.state_dtype == "float32" or (backend is native.fused and native.reads_formats(batch))
        (whole if as_stored else others).append(batch)
        if as_stored and batch.states:
            batch.moments = [
                [state[key] for key in stored_shapes(rule.moments, p, batch.state_dtype)]
                for p, state in zip(batch.params, batch.states, strict=True)
            ]
    if whole:
        backend(rule, whole)
    for part in (part for batch in others for part in _parts(batch)):
        _step_decoded(rule, part, backend)


def _step_decoded(rule: Rule, part: TensorBatch, backend: Backend) -> None:
    params = part.params
    part.moments = [[decode(state, name) for name in rule.moments] for state in part.states]
    part.params = [join(p, state[REST]) if REST in state else p for p, state in zip(params, part.states, strict=True)]
    backend(rule, [part])
    for i, (p, state) in enumerate(zip(params, part.states, strict=True)):
        seed = hash32(rounding_seed(part.t, part.indices[i]))
        noise = element_noise(part.moments[i][0], seed)
        for name, value in zip(rule.moments, part.moments[i], strict=True):
            encode(state, name, value, noise)
        if REST in state:
            high, low = split(part.params[i], noise.bitwise_and_(255))
            p.copy_(high)
            state[REST].copy_(low)


def _parts(batch: TensorBatch) -> Iterator[TensorBatch]:
    start, size = 0, 0
    for stop, p in enumerate(batch.params):
        if size and size + p.numel() > PART:
            yield _cut(batch, start, stop)
            start, size = stop, 0
        size += p.numel()
    yield _cut(batch, start, len(batch.params))


def _cut(batch: TensorBatch, start: int, stop: int) -> TensorBatch:
    columns = {name: getattr(batch, name)[start:stop] for name in ("params", "grads", "states", "indices")}
    return replace(batch, **columns, moments=[], state_dtype="float32")  # as decoded
