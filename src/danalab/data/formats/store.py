"""Several memory-mapped shards as one token stream; rows are copied without Python work per token."""

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from danalab.data.formats.shards import Shard


class TokenStore:
    """The concatenated tokens of `shards`. A shard is mapped when it is first read."""

    def __init__(self, shards: Sequence[Shard], name: str):
        """`name` identifies the tokens in messages, e.g. "data/wiki (train)"."""
        self.name = name
        self.shards = list(shards)
        self._ends = np.cumsum([shard.n_tokens for shard in self.shards], dtype=np.int64)
        self.n_tokens = int(self._ends[-1]) if self.shards else 0
        self._mapped: dict[int, np.ndarray] = {}
        self._views: dict[tuple[int, int], np.ndarray] = {}
        # Random access wastes read-ahead: 128 KiB or more for a window of 4 KiB. A small split is soon read whole.
        self._scattered = self.n_tokens > 2**29

    def _tokens(self, number: int) -> np.ndarray:
        if number not in self._mapped:
            self._mapped[number] = self.shards[number].tokens(scattered=self._scattered)
        return self._mapped[number]

    def rows(self, starts: np.ndarray, length: int) -> np.ndarray:
        """tokens[start : start + length] for each start, [len(starts), length], in the shards' own type."""
        if len(self.shards) == 1:
            return self._rows_of_shard(0, starts, length)
        first = np.searchsorted(self._ends, starts, side="right")
        last = np.searchsorted(self._ends, starts + (length - 1), side="right")
        inside = first == last
        if len(starts) and inside.all() and (first == first[0]).all():
            return self._rows_of_shard(int(first[0]), starts, length)
        rows = np.empty((len(starts), length), self.shards[0].dtype)
        for number in np.unique(first[inside]).tolist():
            chosen = inside & (first == number)
            rows[chosen] = self._rows_of_shard(number, starts[chosen], length)
        for row in np.flatnonzero(~inside).tolist():
            rows[row] = self.read(int(starts[row]), length)
        return rows

    def _rows_of_shard(self, number: int, starts: np.ndarray, length: int) -> np.ndarray:
        # One fancy index into a strided view copies all rows in C. Making the view takes longer than a small batch, so
        # it is kept.
        if (number, length) not in self._views:
            self._views[number, length] = sliding_window_view(self._tokens(number), length)
        origin = self._ends[number] - self.shards[number].n_tokens
        return self._views[number, length][starts - origin]

    def read(self, start: int, length: int) -> np.ndarray:
        """tokens[start : start + length], across shards; shorter at the end of the stream."""
        pieces = []
        stop = min(start + length, self.n_tokens)
        while start < stop:
            number = int(np.searchsorted(self._ends, start, side="right"))
            end = int(self._ends[number])
            local = start - (end - self.shards[number].n_tokens)
            piece = self._tokens(number)[local : local + min(stop, end) - start]
            pieces.append(piece)
            start += len(piece)
        return np.concatenate(pieces) if pieces else np.empty(0, np.uint16)

    def pieces(self, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """tokens[start : start + length] of each pair, concatenated, in the shards' own type."""
        result = np.empty(int(lengths.sum()), self.shards[0].dtype)
        numbers = np.searchsorted(self._ends, starts, side="right")
        filled = 0
        for number, start, length in zip(numbers.tolist(), starts.tolist(), lengths.tolist(), strict=True):
            end = int(self._ends[number])
            if start + length <= end:
                local = start - (end - self.shards[number].n_tokens)
                result[filled : filled + length] = self._tokens(number)[local : local + length]
            else:
                result[filled : filled + length] = self.read(start, length)
            filled += length
        return result

    def first_at_least(self, limit: int, number: int) -> tuple[int, int] | None:
        """Position and id of the first token >= `limit` in shard `number`."""
        tokens = self._tokens(number)
        block = 1 << 25
        for start in range(0, len(tokens), block):
            found = np.flatnonzero(tokens[start : start + block] >= limit)
            if len(found):
                position = start + int(found[0])
                return position, int(tokens[position])
        return None
