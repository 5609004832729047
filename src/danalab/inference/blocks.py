"""Blocks of cache memory: allocation, reference counts, and reuse of common prefixes.

The cache is divided into blocks of `block_size` positions; a sequence has a list of blocks, which may lie anywhere, so
nothing is copied when sequences come and go. A full block may be published under (node of the previous block, its
tokens), where a node stands for all tokens up to the block's end. Equality of prefixes is exact: no hash stands for
tokens. Unreferenced published blocks stay until their memory is needed, the least recently used first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

Key = tuple[int | str, tuple[int, ...]]
"""(node before the block, or the scope at the beginning; the tokens of the block)."""


class BlockPool:
    """See the module."""

    def __init__(self, n_blocks: int, block_size: int):
        self.n_blocks, self.block_size = n_blocks, block_size
        self._free = list(range(n_blocks - 1, -1, -1))
        self._references = [0] * n_blocks
        self._published: dict[Key, tuple[int, int]] = {}  # -> block, node
        self._key_of: dict[int, Key] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # published and unreferenced, least recently used first
        self._next_node = 0

    @property
    def available(self) -> int:
        """Blocks that can be taken."""
        return len(self._free) + len(self._idle)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold `tokens` positions."""
        return -(-tokens // self.block_size)

    def take(self) -> int:
        """A block with one reference; `available` must not be 0."""
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._idle.popitem(last=False)
            del self._published[self._key_of.pop(block)]
        self._references[block] = 1
        return block

    def release(self, blocks: Sequence[int]) -> None:
        """Give up one reference of each; the last blocks of a sequence are forgotten before its first ones."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                if block in self._key_of:
                    self._idle[block] = None
                else:
                    self._free.append(block)

    def publish(self, block: int, before: int | str, tokens: tuple[int, ...]) -> int:
        """Make a full block findable; returns its node. If an equal block is known, this one stays private."""
        key = (before, tokens)
        if key not in self._published:
            self._published[key] = (block, self._next_node)
            self._key_of[block] = key
            self._next_node += 1
        return self._published[key][1]

    def match(self, scope: str, tokens: Sequence[int], limit: int, multiple: int = 1) -> tuple[list[int], int | str]:
        """Blocks of the longest known prefix of `tokens`, with one more reference each, and its node.

        Args: limit: blocks at most. multiple: their number is divisible by it.
        """
        found: list[tuple[int, int]] = []
        node: int | str = scope
        size = self.block_size
        for start in range(0, min(limit, len(tokens) // size) * size, size):
            entry = self._published.get((node, tuple(tokens[start : start + size])))
            if entry is None:
                break
            found.append(entry)
            node = entry[1]
        found = found[: len(found) // multiple * multiple]
        blocks = [block for block, _ in found]
        for block in blocks:
            self._references[block] += 1
            self._idle.pop(block, None)
        return blocks, found[-1][1] if found else scope

    def forget(self) -> None:
        """Unpublish everything: the model's weights have changed."""
        self._published.clear()
        self._key_of.clear()
        self._free.extend(self._idle)
        self._idle.clear()
