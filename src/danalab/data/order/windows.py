"""Numbered rows of tokens and their order: the windows of a stream, reshuffled each epoch.

The tokens of a split are cut into windows of seq_len + 1 at stride seq_len: window w is tokens[w L : w L + L + 1], its
inputs are the first L, its targets the last L, so every token but the first is predicted once.
"""

from collections.abc import Iterable
from typing import Protocol

import numpy as np
import torch

from danalab.data.formats.shards import TokenStore
from danalab.data.order.permutation import EndlessOrder
from danalab.errors import UserError

TokenBatch = tuple[torch.Tensor, torch.Tensor]
"""Inputs and targets, int64 [sequences, seq_len]; a target of -1 carries no loss."""

Span = tuple[int, int]
"""Positions [begin, end) in an infinite list of sequences."""


class Rows(Protocol):
    """Numbered sequences of one length."""

    n: int
    """Number of sequences."""
    seq_len: int

    def read(self, numbers: np.ndarray) -> TokenBatch:
        """The rows with these numbers, each in range(n)."""
        ...


class Sequences(Protocol):
    """An infinite list of sequences, a pure function of the position."""

    per_epoch: int
    """Number of sequences of an epoch."""
    seq_len: int
    name: str
    """Identifies the data in messages."""

    def numbers(self, spans: Iterable[Span]) -> np.ndarray:
        """The numbers of the rows at these positions, int64."""
        ...

    def take(self, spans: Iterable[Span]) -> TokenBatch:
        """The sequences at these positions, concatenated."""
        ...


class Windows:
    """The windows of a token stream: a `Rows`."""

    def __init__(self, store: TokenStore, seq_len: int):
        """Raises UserError if seq_len is below 1."""
        self.n = max(0, store.n_tokens - 1) // require_length(seq_len)
        self.seq_len = seq_len
        self._store = store

    def read(self, numbers: np.ndarray) -> TokenBatch:
        return to_batch(self._store.rows(numbers * self.seq_len, self.seq_len + 1))


class Shuffled:
    """Rows in the order of a keyed permutation, a new one each epoch."""

    def __init__(self, rows: Rows, key: bytes, name: str):
        self.per_epoch, self.seq_len, self.name = rows.n, rows.seq_len, name
        self._rows = rows
        self._order = EndlessOrder(rows.n, key) if rows.n else None

    def numbers(self, spans: Iterable[Span]) -> np.ndarray:
        if self._order is None:
            raise UserError(f"{self.name}: shorter than one sequence of {self.seq_len} tokens")
        return joined([self._order(begin, end) for begin, end in spans])

    def take(self, spans: Iterable[Span]) -> TokenBatch:
        return self._rows.read(self.numbers(spans))


def require_length(seq_len: int) -> int:
    """Return `seq_len`."""
    if seq_len < 1:
        raise UserError(f"seq_len {seq_len}: at least 1 is needed")
    return seq_len


def joined(pieces: list[np.ndarray]) -> np.ndarray:
    """The concatenated pieces, without a copy if there is only one."""
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def to_batch(rows: np.ndarray) -> TokenBatch:
    """Rows of seq_len + 1 tokens of any integer type as (inputs, targets)."""
    inputs = torch.empty(len(rows), rows.shape[1] - 1, dtype=torch.int64)
    targets = torch.empty_like(inputs)
    # numpy widens on this thread alone; torch would start a second thread pool beside the trainer's.
    np.copyto(inputs.numpy(), rows[:, :-1])
    np.copyto(targets.numpy(), rows[:, 1:])
    return inputs, targets
