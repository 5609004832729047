"""Batches as a pure function of the step, from numbered rows of tokens and their order.

    tokens of a split -> Rows: row w is tokens[w L : w L + L + 1]
    seed -> order: an infinite list of row numbers          rows, order -> Batches

Of a window the inputs are the first L tokens, the targets the last L, so every token but the first is predicted once.
The order is epoch after epoch, each a permutation keyed by (fingerprint, seed, seq_len, epoch). The global batch of
step s is the next `global_batch` rows of that list; rank r takes the r-th of its `world_size` equal slices.

The order is independent of the number of ranks and workers and of the global batch, and the only state is the number
of sequences consumed. torch is imported where tensors are made: preparing data needs none.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

import numpy as np

from danalab.data.formats.shards import TokenStore
from danalab.errors import UserError

if TYPE_CHECKING:
    import torch

# Several small batches are assembled together: otherwise Python costs more than copying.
_TOKENS_AT_ONCE = 1 << 16

TokenBatch = tuple["torch.Tensor", "torch.Tensor"]
"""Inputs and targets, int64 [sequences, seq_len]; a target of -1 carries no loss."""


class Rows(Protocol):
    """Numbered sequences of one length."""

    n: int
    """Number of sequences."""
    seq_len: int

    def read(self, numbers: np.ndarray) -> TokenBatch: ...


class Order(Protocol):
    """An infinite list of row numbers, a pure function of the position."""

    n: int
    """Rows of an epoch."""

    def __call__(self, begin: int, end: int) -> np.ndarray: ...  # at the positions [begin, end), int64


class Batches:
    """`batches[step]` for any step >= 0; made by `Dataset.batches`."""

    def __init__(
        self, rows: Rows, order: Order, name: str, *, global_batch: int, rank: int = 0, world_size: int = 1
    ):
        """`global_batch`: sequences of a step on all ranks; `name` identifies the data in messages."""
        if global_batch % world_size:
            raise UserError(f"global batch {global_batch} is not a multiple of the {world_size} ranks")
        if order.n < global_batch:
            raise UserError(
                f"{name}: {order.n:,} sequences of {rows.seq_len} tokens, but one batch has {global_batch:,}; "
                "give more text, or a smaller batch or seq-len"
            )
        self.seq_len = rows.seq_len
        self.global_batch = global_batch
        self.local_batch = global_batch // world_size
        self._rows, self._order, self._rank = rows, order, rank

    def windows(self, step: int) -> np.ndarray:
        """Numbers of the rows in this rank's part of `step`, int64."""
        if step < 0:
            raise IndexError(f"step {step} is negative")
        begin = step * self.global_batch + self._rank * self.local_batch
        return self._order(begin, begin + self.local_batch)

    def __getitem__(self, step: int) -> TokenBatch:
        """This rank's (inputs, targets) of a step, int64 [global_batch / world_size, seq_len]."""
        return self._rows.read(self.windows(step))

    def iterate(self, start_step: int = 0, *, pin_memory: bool = False) -> Generator[TokenBatch]:
        """Infinite iterator from `start_step`; a thread keeps two batches (or groups of small ones) ready."""
        count = max(1, _TOKENS_AT_ONCE // (self.local_batch * self.seq_len))

        def assemble(step: int) -> list[TokenBatch]:
            """The batches of `count` steps from `step` on."""
            parts = self._rows.read(np.concatenate([self.windows(step + i) for i in range(count)]))
            inputs, targets = (part.pin_memory() for part in parts) if pin_memory else parts
            return list(zip(inputs.split(self.local_batch), targets.split(self.local_batch), strict=True))

        pool = ThreadPoolExecutor(1, "danalab-loader")
        steps = itertools.count(start_step, count)
        ready = deque(pool.submit(assemble, next(steps)) for _ in range(2))
        try:
            while True:
                group = ready.popleft().result()
                ready.append(pool.submit(assemble, next(steps)))
                yield from group
        finally:
            # A thread inside torch when the interpreter ends would abort the process.
            pool.shutdown(cancel_futures=True)


class Sequential:
    """All rows of a split in order, for evaluation; made by `Dataset.sequential`.

    `len(windows)` is their number, `windows[i:j]` is (inputs, targets), int64 [j - i, seq_len]. The last tokens of a
    stream, fewer than seq_len, are left out.
    """

    def __init__(self, rows: Rows, name: str):
        """Raises UserError if there is no row; `name` identifies the data in the message."""
        self.seq_len = rows.seq_len
        self._rows = rows
        if rows.n == 0:
            raise UserError(
                f"{name}: shorter than one sequence of {rows.seq_len + 1:,} tokens; give more text or a smaller seq-len"
            )

    def __len__(self) -> int:
        return self._rows.n

    def __getitem__(self, which: slice) -> TokenBatch:
        return self._rows.read(np.arange(self._rows.n)[which])


class Windows:
    """The windows of a token stream, or the beginnings of its sequences of `length` tokens: a `Rows`."""

    def __init__(self, store: TokenStore, seq_len: int, length: int | None = None):
        """Raises UserError if seq_len is below 1."""
        if seq_len < 1:
            raise UserError(f"seq_len is {seq_len}; it must be at least 1")
        self.n = store.n_tokens // length if length else max(0, store.n_tokens - 1) // seq_len
        self.seq_len = seq_len
        self._store, self._stride, self._width = (
            store,
            length or seq_len,
            min(seq_len + 1, length or seq_len + 1),
        )

    def read(self, numbers: np.ndarray) -> TokenBatch:
        import torch

        rows = self._store.rows(numbers * self._stride, self._width)
        inputs = torch.empty(len(rows), self.seq_len, dtype=torch.int64)
        targets = torch.full_like(inputs, -1)  # the last token of a whole sequence has no target
        # numpy widens on this thread alone; torch would start a second thread pool beside the trainer's.
        np.copyto(inputs.numpy(), rows[:, : self.seq_len])
        np.copyto(targets.numpy()[:, : self._width - 1], rows[:, 1:])
        return inputs, targets
