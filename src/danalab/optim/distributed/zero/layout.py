"""Ownership of parameters and the layout of buckets: a pure function of shapes and the number of ranks.

A piece is a part of a parameter with one owner: a whole matrix or small parameter, or an equal slice of a large
element-wise one. A bucket has a chunk of equal length for each rank, with the rank's pieces one after another, so that
one reduce-scatter sends every rank the gradients of its pieces, and one all-gather returns the parameters.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from danalab.optim.distributed.shards import owners

ALIGNMENT = 64
"""Slices begin at multiples of this [elements], so that vector instructions process the same elements for any number of
ranks, and results are bitwise equal."""

SMALL = 4096
"""Parameters with fewer elements are not sliced."""

MOST_PADDING = 1.2
"""Ratio of a bucket's padded length to its content above which it is not closed."""


@dataclass(frozen=True)
class Content:
    """The layout's view of a parameter."""

    numel: int
    cost: float
    """Of its update, in any unit."""
    sliceable: bool
    """Whether it is updated element by element."""
    key: Any = None
    """Only parameters with equal keys (dtype and device) share a bucket."""


@dataclass(frozen=True)
class Piece:
    """Elements start..stop of a flattened parameter, and their offset in the owner's chunk."""

    parameter: int
    start: int
    stop: int
    owner: int
    offset: int

    @property
    def numel(self) -> int:
        return self.stop - self.start

    @property
    def flag(self) -> int:
        """Offset in the chunk of the flag that the parameter has a gradient."""
        return self.offset + self.numel


@dataclass(frozen=True)
class Bucket:
    """Pieces that are sent together, in chunks of `chunk` elements."""

    pieces: tuple[Piece, ...]
    chunk: int
    parameters: tuple[int, ...] = field(default=())


def plan(contents: Sequence[Content], ranks: int, bucket_elements: int) -> list[Bucket]:
    """Buckets for all parameters, in the order in which a backward pass completes them: last parameters first.

    A bucket is closed at `bucket_elements`, unless its chunks are too uneven.
    """
    sliced = [c.sliceable and c.numel >= SMALL and ranks > 1 for c in contents]
    owner = iter(owners([c.cost for c, s in zip(contents, sliced, strict=True) if not s], ranks))
    parts: list[list[tuple[int, int, int]]] = []  # of each parameter: start, stop, owner
    for content, is_sliced in zip(contents, sliced, strict=True):
        if is_sliced:
            length = math.ceil(content.numel / ranks / ALIGNMENT) * ALIGNMENT
            bounds = [min(r * length, content.numel) for r in range(ranks + 1)]
            parts.append([(bounds[r], bounds[r + 1], r) for r in range(ranks) if bounds[r] < bounds[r + 1]])
        else:
            parts.append([(0, content.numel, next(owner))])
    buckets: list[Bucket] = []
    by_key: dict[Any, list[int]] = {}
    for i in reversed(range(len(contents))):
        by_key.setdefault(contents[i].key, []).append(i)
    for indices in by_key.values():
        groups: list[list[int]] = [[]]
        for i in indices:
            groups[-1].append(i)
            size = sum(contents[k].numel for k in groups[-1])
            if size >= bucket_elements and _padding(groups[-1], parts, ranks) <= MOST_PADDING:
                groups.append([])
        if not groups[-1]:
            groups.pop()
        elif len(groups) > 1 and _padding(groups[-1], parts, ranks) > MOST_PADDING:
            leftover = groups.pop()  # a few parameters would be mostly padding
            groups[-1] += leftover
        buckets += [_bucket(group, parts, ranks) for group in groups]
    return buckets


def _padding(group: list[int], parts: list[list[tuple[int, int, int]]], ranks: int) -> float:
    """Padded length of a bucket over its content."""
    loads = [0] * ranks
    for i in group:
        for start, stop, owner in parts[i]:
            loads[owner] += stop - start
    return max(loads) * ranks / max(1, sum(loads))


def _bucket(group: list[int], parts: list[list[tuple[int, int, int]]], ranks: int) -> Bucket:
    lengths = [0] * ranks
    pieces = []
    for i in group:
        for start, stop, owner in parts[i]:
            pieces.append(Piece(i, start, stop, owner, lengths[owner]))
            lengths[owner] += stop - start + 1  # the flag follows
    return Bucket(tuple(pieces), max(lengths), tuple(group))
