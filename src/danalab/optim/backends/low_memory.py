"""A step on moments of fewer bytes: decoded to float32, updated by any back end, and rounded, part by part."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from danalab.optim.core.batch import Batch
from danalab.optim.core.rule import Rule
from danalab.optim.core.state_formats import decode, encode, seed_of

PART = 1 << 24
"""Elements whose moments are float32 at the same time; a larger parameter is a part of its own."""


def step_by_format(rule: Rule, batches: Sequence[Batch], backend: Callable[[Rule, list[Batch]], None]) -> None:
    """The update of all batches by a back end, those with other moments than float32 in parts."""
    wide = [batch for batch in batches if batch.state_dtype == "float32"]
    if wide:
        backend(rule, wide)
    for part in (part for batch in batches if batch.state_dtype != "float32" for part in _parts(batch)):
        part.moments = [[decode(state, name) for name in rule.moments] for state in part.states]
        backend(rule, [part])
        for index, state, moments in zip(part.indices, part.states, part.moments, strict=True):
            for place, (name, value) in enumerate(zip(rule.moments, moments, strict=True)):
                encode(state, name, value, seed_of(int(part.t), index, place))


def _parts(batch: Batch) -> Iterator[Batch]:
    start, size = 0, 0
    for stop, p in enumerate(batch.params):
        if size and size + p.numel() > PART:
            yield _cut(batch, start, stop)
            start, size = stop, 0
        size += p.numel()
    yield _cut(batch, start, len(batch.params))


def _cut(batch: Batch, start: int, stop: int) -> Batch:
    columns = {name: getattr(batch, name)[start:stop] for name in ("params", "grads", "states", "indices")}
    return replace(batch, **columns, moments=[])
