"""The foreach way on a CPU: blocks small enough for the cache, all with their temporaries in the same memory.

An update is two dozen operations. On whole parameters each would be a pass over memory; and each temporary would be new
memory, which the kernel hands out page by page, filled with zeros, for more than the arithmetic costs. Blocks alone are
no way out of that: whether an allocator keeps what is freed at the end of one block for the next, or gives it back to
the kernel, hangs on what the process did before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

CACHE_BLOCK = 1 << 18
"""Elements of a block, a mebibyte in float32: a dozen of them stay in the last cache, while with smaller ones the
threads' starting and stopping at each operation takes more of the time."""

SMALL = 1 << 13
"""Elements up to which a tensor takes less time in a list with others than as a block: what an operation costs beyond
its arithmetic is a third in a list, whose temporaries are as small."""


def in_blocks(lists: Sequence[Sequence[Tensor]]) -> Iterator[tuple[Tensor, ...]]:
    """Views of what lies at the same place in parallel lists, flat where that is possible."""
    for tensors in zip(*lists, strict=True):
        if all(tensor.is_contiguous() for tensor in tensors):
            count = -(-tensors[0].numel() // CACHE_BLOCK)  # of blocks alike, so that none is too small for all threads
            yield from zip(*(tensor.view(-1).chunk(max(count, 1)) for tensor in tensors), strict=True)
        else:
            yield tensors


class SameMemory:
    """Makes the temporaries of one block after another; a `danalab.optim.backends.foreach.New`."""

    def __init__(self) -> None:
        self._memory: list[Tensor] = []
        self._made: list[Tensor] = []
        self._taken = 0

    def start_block(self) -> None:
        """Take back all that was made."""
        self._taken = 0

    def __call__(self, name: str, x: Tensor, *others: Any, over: Tensor | None = None, **settings: Any) -> Tensor:
        """The result of a function of torch; arguments as of `danalab.optim.backends.foreach.fresh`."""
        return getattr(torch, name)(x, *others, **settings, out=self._like(x) if over is None else over)

    def _like(self, x: Tensor) -> Tensor:
        which, self._taken = self._taken, self._taken + 1
        if which == len(self._made):
            self._memory.append(x.new_empty(CACHE_BLOCK))
            self._made.append(self._memory[which])
        if self._made[which].shape == x.shape:
            return self._made[which]
        if x.ndim != 1 or x.numel() > CACHE_BLOCK:
            return torch.empty_like(x)
        self._made[which] = self._memory[which][: x.numel()]
        return self._made[which]
