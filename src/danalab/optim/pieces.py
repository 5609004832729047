"""Which rank owns what, where parameters are cut for ZeRO.

Element-wise parameters are cut into equal slices; matrices that are orthogonalised have one owner.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from .gathered import owners

BUCKET = 1 << 23
"""Elements that are communicated at once."""
LINE = 64
"""Slices are cut between whole vectors, so that a kernel computes every element as in one process."""


@dataclass(frozen=True)
class Piece:
    """Elements [start, stop) of a flattened parameter, which one rank owns."""

    parameter: int
    owner: int
    start: int
    stop: int
    offset: int
    """Of the first element in the owner's part of the bucket."""

    def of(self, flat: Tensor) -> Tensor:
        """The piece of the flattened parameter, or of a tensor of its size."""
        return flat[self.start : self.stop]

    def within(self, part: Tensor) -> Tensor:
        """The piece in the owner's part of the bucket."""
        return part[self.offset : self.offset + self.stop - self.start]


@dataclass
class Bucket:
    """Parameters that are communicated together: each rank has a part of `chunk` elements."""

    parameters: list[int]
    pieces: list[Piece]
    chunk: int


def layout(params: Sequence[Tensor], whole: Sequence[bool], ranks: int) -> list[Bucket]:
    """Buckets of parameters of one dtype; `whole` ones have one owner, balanced by their products."""
    costs = [
        float(p.numel()) * min(p.shape[0], p.numel() // max(p.shape[0], 1)) if w else 0.0
        for p, w in zip(params, whole, strict=True)
    ]
    owner = owners(costs, ranks)
    buckets: list[Bucket] = []
    members: list[int] = []
    for i, p in enumerate(params):
        used = sum(params[k].numel() for k in members)
        if members and (p.dtype != params[members[0]].dtype or used > BUCKET):
            buckets.append(_bucket(members, params, whole, owner, ranks))
            members = []
        members.append(i)
    return [*buckets, _bucket(members, params, whole, owner, ranks)] if members else buckets


def _bucket(
    members: list[int], params: Sequence[Tensor], whole: Sequence[bool], owner: list[int], ranks: int
) -> Bucket:
    used = [0] * ranks
    pieces = []
    for i in members:
        size = params[i].numel()
        share = -(-size // (ranks * LINE)) * LINE
        parts = (
            [(owner[i], 0, size)]
            if whole[i]
            else [(r, min(r * share, size), min((r + 1) * share, size)) for r in range(ranks)]
        )
        for rank, start, stop in parts:
            if start < stop:
                pieces.append(Piece(i, rank, start, stop, used[rank]))
                used[rank] += stop - start
    return Bucket(members, pieces, max(*used, 1))
