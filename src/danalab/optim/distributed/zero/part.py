"""What one rank has of a tensor: consecutive elements of it, flattened, as boxes of the tensor's own shape."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Part:
    """Elements of a tensor of this shape and dtype, from `start` on, as many as there are values."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    start: int = 0
    values: Tensor | None = None
    """None: this rank has nothing of it."""

    def boxes(self) -> Iterator[tuple[tuple[int, ...], Tensor]]:
        """(place of the first element, values) of blocks that make up this part, in order."""
        if self.values is None:
            return
        if 0 in self.shape:  # nothing, but there
            yield (0,) * len(self.shape), self.values
            return
        flat, begin = self.values.reshape(-1), 0
        for offsets, sizes in boxes(self.shape, self.start, self.start + flat.numel()):
            end = begin + math.prod(sizes)
            yield offsets, flat[begin:end].view(sizes)
            begin = end


def boxes(shape: tuple[int, ...], start: int, stop: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(offsets, sizes) of the blocks that elements [start, stop) of a flattened array of this shape are made of.

    The rest of a first row, whole rows, the beginning of a last one; and so on within the rows that are not whole.
    """
    if start == stop:
        return
    row = math.prod(shape[1:])
    first, last = -(-start // row), stop // row  # whole rows
    if first > last:
        yield from _within(shape, last, start, stop)
        return
    if start < first * row:
        yield from _within(shape, first - 1, start, first * row)
    if first < last:
        yield (first, *(0,) * (len(shape) - 1)), (last - first, *shape[1:])
    if last * row < stop:
        yield from _within(shape, last, last * row, stop)


def _within(
    shape: tuple[int, ...], index: int, start: int, stop: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The blocks of elements [start, stop) that lie in one row."""
    begin = index * math.prod(shape[1:])
    for offsets, sizes in boxes(shape[1:], start - begin, stop - begin):
        yield (index, *offsets), (1, *sizes)
