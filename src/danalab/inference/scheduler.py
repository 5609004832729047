"""The scheduler: which tokens of which requests are computed in a step, and which blocks of the cache they have.

Running requests come first, in the order of their admission; a prompt is computed in pieces, so that it does not delay
the others by more than `step_tokens`. Waiting requests are admitted first come, first served, when the cache has space
for their tokens. When it is full, the youngest request gives up its blocks and waits at the head of
the queue: its tokens are computed again later.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import NamedTuple

from danalab.inference.request import RequestState


class Chunk(NamedTuple):
    """The next `length` tokens of a sequence, from `sequence.computed` on."""

    sequence: RequestState
    length: int


class Scheduler:
    """The queue of requests, and the steps of those that run.

    Args:
        pool: blocks for keys and values; None: the model has no attention.
        max_batch_size: sequences that run at the same time.
        step_tokens: tokens of a step, at most (one for each running sequence is always computed).
    """

    def __init__(
        self,
        pool: BlockPool | None,
        *,
        max_batch_size: int,
        step_tokens: int,
        prefix_reuse: bool,
    ):
        self.pool, self.max_batch_size, self.step_tokens = pool, max_batch_size, step_tokens
        self.prefix_reuse = prefix_reuse and pool is not None
        self.running: list[RequestState] = []
        self.preemptions = 0
        self.reused = 0
        """Tokens whose computation was saved."""
        self.waiting: deque[RequestState] = deque()
        self._slots = list(range(max_batch_size - 1, -1, -1))

    # ---- the queue ----

    def add(self, sequence: RequestState) -> None:
        """Queue a new sequence."""
        self.waiting.append(sequence)

    def remove(self, sequence: RequestState) -> None:
        """Forget a sequence, running or waiting."""
        if sequence in self.running:
            self.running.remove(sequence)
            self.release(sequence)
            self._slots.append(sequence.slot)
        else:
            self.waiting.remove(sequence)

    # ---- a step ----

    def plan(self) -> list[Chunk]:
        """The tokens of the next step; the cache has space for them."""
        chunks: list[Chunk] = []
        budget, before, at = self.step_tokens - len(self.running), self.preemptions, 0
        while at < len(self.running):  # which shrinks at its end when sequences are pre-empted
            sequence = self.running[at]
            count = sequence.pending
            if count > 1:
                count = min(count, max(budget, 0))
                budget -= count
            if count and self._grow(sequence, sequence.computed + count):
                chunks.append(Chunk(sequence, count))
            at += 1
        while budget > 0 and self._slots and self.preemptions == before:
            sequence = self._admit()
            if sequence is None:
                break
            count = min(sequence.pending, budget)
            budget -= count
            chunks.append(Chunk(sequence, count))
        return chunks

    def advance(self, chunk: Chunk) -> None:
        """Note that a chunk has been computed; its full blocks can be reused from now on."""
        sequence = chunk.sequence
        sequence.computed += chunk.length
        if not self.prefix_reuse or self.pool is None:
            return
        size = self.pool.block_size
        while (sequence.published + 1) * size <= sequence.computed:
            at = sequence.published
            tokens = tuple(sequence.tokens[at * size : (at + 1) * size])
            sequence.node = self.pool.publish(sequence.blocks[at], sequence.node, tokens)
            sequence.published += 1

    def release(self, sequence: RequestState) -> None:
        """Give up the cache of a sequence; all its tokens are to be computed again."""
        if self.pool is not None:
            self.pool.release(sequence.blocks)
        sequence.blocks, sequence.node, sequence.published = [], sequence.request.prefix_scope, 0
        sequence.computed, sequence.states = 0, None

    def _grow(self, sequence: RequestState, tokens: int) -> bool:
        """Give a running sequence blocks for `tokens` positions; False: it was pre-empted itself."""
        pool = self.pool
        if pool is None:
            return True
        while len(sequence.blocks) * pool.block_size < tokens:
            if not pool.available:
                victim = self.running.pop()
                self.release(victim)
                self._slots.append(victim.slot)
                self.waiting.appendleft(victim)
                self.preemptions += 1
                if victim is sequence:
                    return False
                continue
            sequence.blocks.append(pool.take())
        return True

    def _admit(self) -> RequestState | None:
        """Start the next waiting sequence, if the cache has space for all its tokens."""
        if not self.waiting:
            return None
        sequence = self.waiting[0]
        if self.pool is not None and not self._place(self.pool, sequence):
            return None
        self.waiting.popleft()
        sequence.slot = self._slots.pop()
        self.running.append(sequence)
        return sequence

    def _place(self, pool: BlockPool, sequence: RequestState) -> bool:
        length, size = len(sequence.tokens), pool.block_size
        if self.prefix_reuse:
            # At least one token is computed: the next one is drawn from its logits.
            scope = sequence.request.prefix_scope
            sequence.blocks, sequence.node = pool.match(scope, sequence.tokens, (length - 1) // size)
        missing = pool.blocks_for(length) - len(sequence.blocks)
        if missing > pool.available:
            self.release(sequence)
            return False
        sequence.published = len(sequence.blocks)
        sequence.computed = sequence.published * size
        self.reused += sequence.computed
        sequence.blocks += [pool.take() for _ in range(missing)]
        return True


Key = tuple[int | str, tuple[int, ...]]
"""(node before the block, or the scope at the beginning; the tokens of the block)."""


class BlockPool:
    """Blocks of cache memory: allocation, reference counts, and reuse of common prefixes.

    The cache is divided into blocks of `block_size` positions; a sequence has a list of blocks, which may lie anywhere,
    so nothing is copied when sequences come and go. A full block may be published under (node of the previous block,
    its tokens), where a node stands for all tokens up to the block's end. Equality of prefixes is exact: no hash stands
    for tokens. Unreferenced published blocks stay until their memory is needed, the least recently used first.
    """

    def __init__(self, n_blocks: int, block_size: int):
        self.n_blocks, self.block_size = n_blocks, block_size
        self._free = list(range(n_blocks - 1, -1, -1))
        self._references = [0] * n_blocks
        self._published: dict[Key, tuple[int, int]] = {}  # -> block, node
        self._key_of: dict[int, Key] = {}
        self._idle: OrderedDict[int, None] = (
            OrderedDict()
        )  # published and unreferenced, least recently used first
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

    def match(self, scope: str, tokens: Sequence[int], limit: int) -> tuple[list[int], int | str]:
        """Blocks, `limit` at most, of the longest known prefix of `tokens`, with a reference; its node."""
        blocks: list[int] = []
        node: int | str = scope
        size = self.block_size
        for start in range(0, min(limit, len(tokens) // size) * size, size):
            entry = self._published.get((node, tuple(tokens[start : start + size])))
            if entry is None:
                break
            block, node = entry
            blocks.append(block)
            self._references[block] += 1
            self._idle.pop(block, None)
        return blocks, node

    def forget(self) -> None:
        """Unpublish everything: the model's weights have changed."""
        self._published.clear()
        self._key_of.clear()
        self._free.extend(self._idle)
        self._idle.clear()
