"""The foreach way on a CPU: blocks small enough for the cache, all with their temporaries in the same memory.

An update is two dozen operations, each a pass over its lists. On whole parameters every pass would go to memory; and
each list of temporaries would be new memory, which the kernel hands out page by page, filled with zeros, for more than
the arithmetic costs. Blocks in memory taken anew are no way out: whether an allocator keeps what is freed at the end of
one block for the next, or gives it back to the kernel, hangs on what the process did before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from danalab.optim.foreach import Tensors

CACHE_BLOCK = 1 << 18
"""Elements of a block, a mebibyte in float32: a dozen such lists stay in the last cache, while with smaller ones the
threads' starting and stopping at each operation takes more of the time."""


def in_blocks(lists: list[Tensors]) -> Iterator[list[Tensors]]:
    """Views of parallel lists of tensors that are worked on together: pieces of large tensors, many small ones."""
    small: list[Tensors] = [[] for _ in lists]
    together = 0  # elements of the small ones
    for tensors in zip(*lists, strict=True):
        numel = tensors[0].numel()
        if numel * 8 <= CACHE_BLOCK:
            if together + numel > CACHE_BLOCK:
                yield small
                small, together = [[] for _ in lists], 0
            together += numel
            for part, tensor in zip(small, tensors, strict=True):
                part.append(tensor)
        elif all(tensor.is_contiguous() for tensor in tensors):
            count = -(-numel // CACHE_BLOCK)  # of blocks alike, so that none is too small for all threads
            for blocks in zip(*(tensor.view(-1).chunk(count) for tensor in tensors), strict=True):
                yield [[block] for block in blocks]
        else:
            yield [[tensor] for tensor in tensors]
    if together:
        yield small


class SameMemory:
    """Makes the lists of temporaries of one block after another; a `danalab.optim.foreach.New`."""

    def __init__(self) -> None:
        self._memory: list[Tensor] = []
        self._lists: list[Tensors] = []
        self._taken = 0

    def start_block(self) -> None:
        """Take back all lists that were made."""
        self._taken = 0

    def __call__(self, name: str, xs: Tensors, *others: Any, over: Tensors | None = None, **settings: Any) -> Tensors:
        """The results of a function of torch on lists of tensors; arguments as of `danalab.optim.foreach.fresh`."""
        made = self._take(xs) if over is None else over
        function = getattr(torch, name)
        for i, out in enumerate(made):
            function(xs[i], *[other[i] if isinstance(other, list) else other for other in others], **settings, out=out)
        return made

    def _take(self, xs: Tensors) -> Tensors:
        """The next list, for results shaped like `xs`."""
        if self._taken == len(self._lists):
            self._memory.append(xs[0].new_empty(0))
            self._lists.append([])
        made = self._lists[self._taken]
        if [x.shape for x in made] != [x.shape for x in xs]:
            made = self._lists[self._taken] = self._views(self._taken, xs)
        self._taken += 1
        return made

    def _views(self, which: int, xs: Tensors) -> Tensors:
        sizes = [x.numel() for x in xs]
        total = sum(sizes)
        if self._memory[which].numel() < total:
            self._memory[which] = xs[0].new_empty(max(total, CACHE_BLOCK))
        pieces = self._memory[which][:total].split(sizes)
        # As x lies in memory where it is not contiguous: along other axes an operation takes several times as long.
        return [
            piece.view_as(x) if x.is_contiguous() else torch.empty_like(x) for piece, x in zip(pieces, xs, strict=True)
        ]
