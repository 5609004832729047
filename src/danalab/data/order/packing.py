"""Whole documents in rows of one length: no padding, and every row starts at the start of a document or piece.

A document of n > L tokens (its end-of-text id included) is split into pieces of L, each of which fills a row, and a
remainder, which is packed like a document. A keyed permutation of each epoch orders all pieces; each chunk of `CHUNK`
consecutive pieces is packed on its own, best fit first:

    fill a row:   the longest piece that fits, until the row is full
                  if none fits: cut the shortest one at the end of the row and queue its remainder
    at the end:   the queued remainders fill the last rows, so that a chunk of T tokens gives T // L rows

A row of L + 1 tokens is the id before its first piece (an end-of-text id at the start of a document), then its pieces:
each token of a document is the target of exactly one position. Chunks are random samples of all pieces, so the mix of
lengths is stationary; the rows of a chunk are shuffled, and so are the pieces of a row.

The number of rows of a chunk depends on lengths alone, so reading any row means packing one chunk: no state.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from danalab.data.formats import scan_cache
from danalab.data.formats.shards import TokenStore
from danalab.data.order.batches import Span, TokenBatch, require_length, to_batch
from danalab.data.order.permutation import Permutation
from danalab.errors import UserError

CHUNK = 1 << 15
_BLOCK = 1 << 24
_log = logging.getLogger(__name__)


class PackedDocuments:
    """The documents of a stream in rows of `seq_len` tokens: a `Sequences`."""

    def __init__(
        self, store: TokenStore, eos_id: int, fingerprint: str, seq_len: int, key: bytes, name: str,
        *, chunk: int = CHUNK,
    ):  # fmt: skip
        """`fingerprint`: of the store's content; `key` chooses the order; `chunk`: number of pieces packed together."""
        self.seq_len, self.name = require_length(seq_len), name
        self._store, self._eos_id, self._key, self._chunk = store, eos_id, key + b"documents|", chunk
        self._ends = document_ends(store, eos_id, fingerprint)
        pieces = -(-np.diff(self._ends, prepend=0) // seq_len)
        self._piece_ends = np.cumsum(pieces)
        self.n_pieces = int(self._piece_ends[-1])
        self.n_chunks = -(-self.n_pieces // chunk)
        # Each chunk leaves out less than a row, so every epoch has at least this many rows; all use this number.
        self.per_epoch = int(self._ends[-1]) // seq_len - (self.n_chunks - 1)
        if self.per_epoch < 1:
            raise UserError(f"{name}: its documents do not fill one row of {seq_len} tokens; take a smaller seq-len")
        self._rows_of_epoch = lru_cache(maxsize=2)(self._compute_rows_of_epoch)
        self._packed = lru_cache(maxsize=4)(self._pack)

    def numbers(self, spans: Iterable[Span]) -> np.ndarray:
        """Positions in the list of all epochs, which identify the rows."""
        return np.concatenate([np.arange(begin, end) for begin, end in spans])

    def take(self, spans: Iterable[Span]) -> TokenBatch:
        starts: list[np.ndarray] = []
        lengths: list[np.ndarray] = []
        for position in self.numbers(spans).tolist():
            epoch, slot = divmod(position, self.per_epoch)
            bounds = self._rows_of_epoch(epoch)
            chunk = int(np.searchsorted(bounds, slot, side="right")) - 1
            packed = self._packed(epoch, chunk)
            row = slot - int(bounds[chunk])
            segments = slice(packed.first[row], packed.first[row + 1])
            first = packed.starts[segments]
            starts += [first[:1] - 1, first]
            lengths += [np.ones(1, np.int64), packed.lengths[segments]]
        before = np.concatenate(starts[::2])
        tokens = self._store.pieces(np.maximum(np.concatenate(starts), 0), np.concatenate(lengths))
        tokens = tokens.reshape(-1, self.seq_len + 1)
        tokens[before < 0, 0] = self._eos_id  # nothing precedes the first document
        return to_batch(tokens)

    def report(self) -> PackingReport:
        """Measured on the first chunk of the first epoch."""
        total = self._store.n_tokens
        packed = self._packed(0, 0)
        split = int(packed.lengths[packed.cut].sum()) / max(int(packed.lengths.sum()), 1)
        return PackingReport(len(self._ends), self.per_epoch, 1 - self.per_epoch * self.seq_len / total, split)

    def _drawn(self, epoch: int, chunk: int) -> tuple[np.ndarray, np.ndarray]:
        """(position in the stream, length) of each piece of a chunk, in the epoch's order."""
        positions = np.arange(chunk * self._chunk, min((chunk + 1) * self._chunk, self.n_pieces))
        numbers = Permutation(self.n_pieces, self._key + str(epoch).encode())(positions)
        document = np.searchsorted(self._piece_ends, numbers, side="right")
        begin = np.where(document > 0, self._ends[document - 1], 0)
        earlier = np.where(document > 0, self._piece_ends[document - 1], 0)
        starts = begin + (numbers - earlier) * self.seq_len
        return starts, np.minimum(self.seq_len, self._ends[document] - starts)

    def _compute_rows_of_epoch(self, epoch: int) -> np.ndarray:
        """Rows before each chunk, int64 [chunks + 1]."""
        tokens = [int(self._drawn(epoch, chunk)[1].sum()) for chunk in range(self.n_chunks)]
        return np.concatenate([[0], np.cumsum(np.array(tokens) // self.seq_len)])

    def _pack(self, epoch: int, chunk: int) -> Packed:
        starts, lengths = self._drawn(epoch, chunk)
        n_rows = int(lengths.sum()) // self.seq_len
        rows, pieces, offsets, used = pack(lengths, self.seq_len, n_rows)
        key = self._key + f"{epoch}|{chunk}".encode()
        shuffled = Permutation(n_rows, key + b"|rows")(np.arange(n_rows)) if n_rows else np.empty(0, np.int64)
        within = Permutation(len(rows), key + b"|pieces")(np.arange(len(rows))) if n_rows else rows
        unfinished = offsets + used < lengths[pieces]  # it has no end-of-text id, so it must come last in its row
        order = np.lexsort((within, unfinished, shuffled[rows]))
        counts = np.bincount(rows, minlength=n_rows)[np.argsort(shuffled)]
        return Packed(
            first=np.concatenate([[0], np.cumsum(counts)]),
            starts=(starts[pieces] + offsets)[order],
            lengths=used[order],
            cut=(used < lengths[pieces])[order],
        )


@dataclass(frozen=True)
class Packed:
    """The rows of one chunk: segments of the stream, sorted by row."""

    first: np.ndarray
    """Each row's first segment, int64 [rows + 1]."""
    starts: np.ndarray
    """Position of each segment in the stream, int64."""
    lengths: np.ndarray
    cut: np.ndarray
    """Whether a segment belongs to a piece that was cut at the end of a row."""


@dataclass(frozen=True)
class PackingReport:
    """The effect of packing on the documents."""

    documents: int
    rows: int
    """Rows of an epoch."""
    cropped_share: float
    """Share of the tokens that an epoch leaves out."""
    split_share: float
    """Share of a chunk's tokens in documents that fit a row but were cut."""

    def __str__(self) -> str:
        return (
            f"{self.documents:,} documents in {self.rows:,} rows an epoch; {self.cropped_share:.2%} of the tokens are "
            f"left out, {self.split_share:.2%} are in documents that were cut"
        )


def pack(lengths: np.ndarray, capacity: int, n_rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Fill `n_rows` rows of `capacity` with pieces, best fit first; their lengths are in [1, capacity] and suffice.

    Returns, row by row, for each segment, int64: its row, its piece, the offset in the piece, its length.
    """
    order = np.argsort(lengths, kind="stable").tolist()
    ends = np.cumsum(np.bincount(lengths, minlength=capacity + 1)).tolist()
    begins = [0, *ends[:-1]]  # unused pieces of length n: order[begins[n] : ends[n]]
    below = [n if ends[n] > begins[n] else n - 1 for n in range(capacity + 1)]  # towards the longest one <= n
    below[0] = 0
    shortest = 1
    remainders: deque[tuple[int, int, int]] = deque()  # piece, offset, length of the remainders of cut pieces
    segments: list[tuple[int, int, int, int]] = []
    for row in range(n_rows):
        gap = capacity
        while gap:
            fit = gap
            while below[fit] != fit:
                below[fit] = fit = below[below[fit]]
            if fit:
                ends[fit] -= 1
                if ends[fit] == begins[fit]:
                    below[fit] = fit - 1
                segments.append((row, order[ends[fit]], 0, fit))
                gap -= fit
                continue
            while shortest <= capacity and ends[shortest] == begins[shortest]:
                shortest += 1
            if shortest <= capacity:
                ends[shortest] -= 1
                if ends[shortest] == begins[shortest]:
                    below[shortest] = shortest - 1
                piece, offset, length = order[ends[shortest]], 0, shortest
            else:
                piece, offset, length = remainders.popleft()
            taken = min(gap, length)
            segments.append((row, piece, offset, taken))
            gap -= taken
            if taken < length:
                remainders.append((piece, offset + taken, length - taken))
    table = np.array(segments, dtype=np.int64).reshape(-1, 4)
    return table[:, 0], table[:, 1], table[:, 2], table[:, 3]


def document_ends(store: TokenStore, eos_id: int, fingerprint: str) -> np.ndarray:
    """The position after each document's end-of-text id, int64 [documents], memory-mapped if cached."""
    key = f"documents-{fingerprint}-{eos_id}.npy"
    ends = scan_cache.load_array(key)
    if ends is None:
        _log.info("%s: scanning %d tokens once for the ends of documents", store.name, store.n_tokens)
        starts = range(0, store.n_tokens, _BLOCK)
        parts = [np.flatnonzero(store.read(start, _BLOCK) == eos_id) + (start + 1) for start in starts]
        ends = np.concatenate([np.empty(0, np.int64), *parts]).astype(np.int64)
        scan_cache.save_array(key, ends)
    if len(ends) == 0:
        raise UserError(f"{store.name}: no end of a document (id {eos_id}) in it: --packing documents needs them")
    return ends
