"""State of sharded optimizers for checkpoints: each rank gives and takes only what it holds.

    sharded_state_dict(optimizer)               state_dict() whose tensors may be DTensors or `TensorShard`s
    empty_shard(optimizer, index, shape, dtype) zeros into which a tensor of a parameter's state is read
    optimizer.load_state_dict(state)            accepts both

An optimizer with a sharding of its own (`DistributedMuonAdamW`) has the first two as methods. The state of every other
optimizer is sharded like its parameters.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor


def sharded_state_dict(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The optimizer's state_dict in which each rank has only its own part of sharded tensors. Collective."""
    own = getattr(optimizer, "sharded_state_dict", None)
    return optimizer.state_dict() if own is None else own()


def empty_shard(
    optimizer: torch.optim.Optimizer, index: int, shape: Sequence[int], dtype: torch.dtype
) -> "SavedTensor":
    """Zeros for this rank's part of a state tensor."""
    own = getattr(optimizer, "empty_shard", None)
    if own is not None:
        return own(index, shape, dtype)
    p = [p for group in optimizer.param_groups for p in group["params"]][index]
    if tuple(shape) == tuple(p.shape):
        return torch.zeros_like(p, dtype=dtype)
    if hasattr(p, "placements") and len(shape) == p.ndim > 1 and tuple(shape[:-1]) == tuple(p.shape[:-1]):
        return torch.zeros_like(p.detach()[..., : shape[-1]], dtype=dtype)  # scales of blocks, sharded as their rows
    return torch.zeros(tuple(shape), dtype=dtype)


@dataclass(frozen=True)
class TensorShard:
    """Consecutive elements of a flattened tensor, the first of them at `start`.

    torch.distributed.checkpoint writes and reads it as blocks of the whole tensor, so a checkpoint does not depend on
    how the tensor was sharded.
    """

    shape: tuple[int, ...]
    """Of the whole tensor."""
    dtype: torch.dtype
    start: int = 0
    values: Tensor | None = None
    """None: this rank has no element of the tensor."""

    def to_local(self) -> Tensor:
        """The values, on a rank that has some."""
        assert self.values is not None
        return self.values

    def with_values(self, values: Tensor | None) -> "TensorShard":
        """The same elements with other values."""
        return replace(self, values=values)

    def blocks(self) -> Iterator[tuple[tuple[int, ...], Tensor]]:
        """(offsets in the whole tensor, values) of the rectangular blocks that make up this shard, in order."""
        if self.values is None:
            return
        if 0 in self.shape:
            yield (0,) * len(self.shape), self.values
            return
        flat, begin = self.values.reshape(-1), 0
        for offsets, sizes in blocks_of(self.shape, self.start, self.start + flat.numel()):
            end = begin + math.prod(sizes)
            yield offsets, flat[begin:end].view(sizes)
            begin = end

    def block(self, offsets: Sequence[int]) -> Tensor:
        """The values of the block at `offsets`."""
        return next(values for place, values in self.blocks() if place == tuple(offsets))

    def __create_chunk_list__(self) -> list[Any]:
        """What torch.distributed.checkpoint reads into this shard."""
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

        return [ChunkStorageMetadata(torch.Size(offsets), values.size()) for offsets, values in self.blocks()]

    def __create_write_items__(self, name: str, _: Any) -> list[Any]:
        """What torch.distributed.checkpoint writes of this shard."""
        from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
        from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

        properties, size = TensorProperties(dtype=self.dtype), torch.Size(self.shape)
        return [
            WriteItem(MetadataIndex(name, c.offsets), WriteItemType.SHARD, None, TensorWriteData(c, properties, size))
            for c in self.__create_chunk_list__()
        ]


SavedTensor = Tensor | TensorShard
"""What a rank has of a tensor of a checkpoint; a DTensor is a Tensor."""


def blocks_of(shape: tuple[int, ...], start: int, stop: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(offsets, sizes) of the blocks that cover elements [start, stop) of a flattened array of this shape.

    They are the rest of a first row, whole rows and the beginning of a last row, recursively within incomplete rows.
    """
    if start == stop:
        return
    row = math.prod(shape[1:])
    first, last = -(-start // row), stop // row  # whole rows
    if first > last:
        yield from _within_row(shape, last, start, stop)
        return
    if start < first * row:
        yield from _within_row(shape, first - 1, start, first * row)
    if first < last:
        yield (first, *(0,) * (len(shape) - 1)), (last - first, *shape[1:])
    if last * row < stop:
        yield from _within_row(shape, last, last * row, stop)


def _within_row(
    shape: tuple[int, ...], index: int, start: int, stop: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The blocks of elements [start, stop), all of them in one row."""
    begin = index * math.prod(shape[1:])
    for offsets, sizes in blocks_of(shape[1:], start - begin, stop - begin):
        yield (index, *offsets), (1, *sizes)


def owners(costs: Sequence[float], ranks: int) -> list[int]:
    """Rank that owns each item: heaviest items first, each to the rank with the smallest load so far.

    The largest load exceeds the mean by less than one item; equal costs are assigned in turn. Deterministic.
    """
    loads = [0.0] * ranks
    chosen = [0] * len(costs)
    for i in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        rank = min(range(ranks), key=lambda r: (loads[r], r))
        chosen[i] = rank
        loads[rank] += costs[i]
    return chosen
