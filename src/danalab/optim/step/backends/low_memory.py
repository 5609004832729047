"""A step on moments of fewer bytes: by the CPU kernel as they are, else decoded to float32, updated, and rounded."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from danalab.optim.rules.rule import Rule
from danalab.optim.step.backends import native
from danalab.optim.step.backends.rounding import element_noise, hash32, rounding_seed
from danalab.optim.step.batch import TensorBatch
from danalab.optim.step.state_formats import REST, decode, encode, join, split, stored_shapes

PART = 1 << 24
"""Elements whose moments are float32 at the same time; a larger parameter is a part of its own."""


def step_by_format(
    rule: Rule, batches: Sequence[TensorBatch], backend: Callable[[Rule, list[TensorBatch]], None]
) -> None:
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


def _step_decoded(rule: Rule, part: TensorBatch, backend: Callable[[Rule, list[TensorBatch]], None]) -> None:
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
