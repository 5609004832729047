"""What a checkpoint holds of a tensor of which each rank has a part.

torch.distributed.checkpoint writes and reads a `TensorShard` as rectangular blocks of the whole tensor, so a
checkpoint does not depend on how the tensor was sharded.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor


def whole_of(x: Any) -> Tensor:
    """A tensor, or a DTensor gathered from its ranks. Collective for DTensors."""
    return x.full_tensor() if hasattr(x, "full_tensor") else x


@dataclass(frozen=True)
class TensorShard:
    """Consecutive elements of a flattened tensor, the first of them at `start`.

    torch.distributed.checkpoint writes and reads it as blocks of the whole tensor, so a checkpoint does not
    depend on how the tensor was sharded.
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
        """(offsets in the whole tensor, values) of the rectangular blocks that make up this shard, in
        order."""
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
            WriteItem(
                MetadataIndex(name, c.offsets),
                WriteItemType.SHARD,
                None,
                TensorWriteData(c, properties, size),
            )
            for c in self.__create_chunk_list__()
        ]


SavedTensor = Tensor | TensorShard
"""What a rank has of a tensor of a checkpoint; a DTensor is a Tensor."""


def blocks_of(
    shape: tuple[int, ...], start: int, stop: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(offsets, sizes) of the blocks that cover elements [start, stop) of a flattened array of this shape.

    They are the rest of a first row, whole rows and the beginning of a last row, recursively within
    incomplete rows.
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
