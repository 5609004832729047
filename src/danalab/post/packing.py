"""Whole conversations in rows of one length: best fit, the rest of a row is padding.

    row    bos user_start ... assistant_end-1 | bos user_start ... | bos bos bos
    target user_start ...     assistant_end   | user_start ...     | none

A conversation of n ids takes n - 1 positions: its last id is only a target. Each begins with bos, at which the model's
document mask restarts attention and positions, so a conversation in a row is computed as if it were alone. One that is
longer than a row is cut after the last whole turn that fits; one without such a turn is left out. Both are counted.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np
import torch

from danalab.chat.conversations import ChatFormat
from danalab.data.order.permutation import Permutation
from danalab.data.order.windows import TokenBatch
from danalab.post.tokenized import SAID, TokenizedConversations
from danalab.train.step.batch import IGNORED


@dataclass(frozen=True)
class PackingCounts:
    """The effect of packing."""

    conversations: int
    """All."""
    truncated: int
    dropped: int
    """No answer, or not even the first fits in a row."""
    rows: int
    filled: float
    """Share of the positions that are not padding."""

    def __str__(self) -> str:
        return (
            f"{self.conversations - self.dropped:,} conversations in {self.rows:,} rows, {self.filled:.1%} full; "
            f"{self.truncated:,} truncated at a turn, {self.dropped:,} without an answer that fits left out"
        )


class ConversationRows:
    """Rows of `seq_len` positions; a `Rows` of `danalab.data.order.windows`."""

    def __init__(self, conversations: TokenizedConversations, chat: ChatFormat, seq_len: int, *, masked: bool):
        """Args: masked: only what the assistant says is a target; otherwise every token is."""
        self.seq_len, self._masked, self._bos = seq_len, masked, chat.bos
        self._coded, all_starts = conversations.coded, conversations.starts
        kept = kept_lengths(conversations, chat.assistant_end, seq_len + 1)
        fits = np.flatnonzero(kept)
        # Equal lengths in a random order: neighbours in a file would share rows.
        fits = fits[Permutation(len(fits), b"conversations")(np.arange(len(fits)))] if len(fits) else fits
        self._lengths = kept[fits] - 1
        self._starts = all_starts[fits]
        row = best_fit(self._lengths, seq_len)
        order = np.argsort(row, kind="stable")
        self._starts, self._lengths = self._starts[order], self._lengths[order]
        self.n = int(row.max()) + 1 if len(row) else 0
        self._first = np.searchsorted(row[order], np.arange(self.n + 1))
        whole = kept_lengths(conversations, chat.assistant_end, len(self._coded) + 1)
        self.counts = PackingCounts(
            conversations=len(conversations),
            truncated=int(((kept > 0) & (kept < whole)).sum()),
            dropped=int((kept == 0).sum()),
            rows=self.n,
            filled=int(self._lengths.sum()) / max(1, self.n * seq_len),
        )

    def read(self, numbers: np.ndarray) -> TokenBatch:
        """See `Rows`."""
        inputs = np.full((len(numbers), self.seq_len), self._bos, np.int64)
        targets = np.full_like(inputs, IGNORED)
        for place, row in enumerate(numbers.tolist()):
            at = 0
            for number in range(self._first[row], self._first[row + 1]):
                start, length = int(self._starts[number]), int(self._lengths[number])
                coded = self._coded[start : start + length + 1]
                ids = (coded & ~SAID).astype(np.int64)
                inputs[place, at : at + length] = ids[:-1]
                is_target = (coded[1:] & SAID) != 0 if self._masked else True
                targets[place, at : at + length] = np.where(is_target, ids[1:], IGNORED)
                at += length
        return torch.from_numpy(inputs), torch.from_numpy(targets)


def kept_lengths(conversations: TokenizedConversations, assistant_end: int, limit: int) -> np.ndarray:
    """Ids of each conversation up to its last whole turn within `limit` ids, int64; 0 where the first does not fit."""
    turn_ends = np.flatnonzero((conversations.coded & ~SAID) == assistant_end) + 1
    starts = conversations.starts
    last = np.searchsorted(turn_ends, np.minimum(conversations.ends, starts + limit), side="right") - 1
    end = np.where(last >= 0, turn_ends[np.maximum(last, 0)] if len(turn_ends) else 0, 0)
    return np.maximum(end - starts, 0)


def best_fit(lengths: np.ndarray, capacity: int) -> np.ndarray:
    """Row of each item, int64: the longest first, each into the fullest row that it fits in."""
    row = np.empty(len(lengths), np.int64)
    rows_by_gap: dict[int, list[int]] = {}
    gaps: list[int] = []
    """Gaps with a row, in order."""
    n_rows = 0
    for item in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[item])
        place = bisect_left(gaps, length)
        if place < len(gaps):
            gap = gaps[place]
            chosen = rows_by_gap[gap].pop()
            if not rows_by_gap[gap]:
                del gaps[place]
        else:
            gap, chosen = capacity, n_rows
            n_rows += 1
        row[item] = chosen
        if left := gap - length:
            waiting = rows_by_gap.setdefault(left, [])
            if not waiting:
                insort(gaps, left)
            waiting.append(chosen)
    return row
