"""Streaming statistics: the count of each id, and a fingerprint of each sequence.

    fingerprint of a sequence x:  (sum_j x_j v_j mod 2^64, sum_j x_j w_j mod 2^64),   v, w fixed odd random numbers

Two different sequences share both sums with a probability below 2^-80, since ids are far below 2^32.
Source of the bound: multilinear hashing, Carter and Wegman 1979.
"""

import numpy as np

_COUNT_TOKENS = 1 << 19  # they stay in cache when widened


class IdCounts:
    """Counts of the ids in [0, vocab_size)."""

    def __init__(self, vocab_size: int):
        self.vocab_size = vocab_size
        self.counts = np.zeros(vocab_size, np.int64)
        self.low: int | None = None
        """Smallest id, including those outside of the vocabulary."""
        self.high: int | None = None

    def add(self, ids: np.ndarray) -> np.ndarray | None:
        """Count ids of any shape; returns the positions of those outside of the vocabulary, or None."""
        flat = ids.reshape(-1)
        if not len(flat):
            return None
        low, high = int(flat.min()), int(flat.max())
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)
        outside = None
        if low < 0 or high >= self.vocab_size:
            wrong = (flat < 0) | (flat >= self.vocab_size)
            outside = np.flatnonzero(wrong)
            flat = flat[~wrong]
        for start in range(0, len(flat), _COUNT_TOKENS):
            part = flat[start : start + _COUNT_TOKENS].astype(np.intp)
            counted = np.bincount(part)
            self.counts[: len(counted)] += counted
        return outside

    @property
    def unique(self) -> int:
        """Number of distinct ids."""
        return int(np.count_nonzero(self.counts))

    @property
    def mean(self) -> float:
        """Mean id; 0 without ids."""
        total = int(self.counts.sum())
        # Python's integers: counts x ids may exceed 2^63
        return sum(int(i) * int(self.counts[i]) for i in np.flatnonzero(self.counts)) / total if total else 0.0


class Fingerprints:
    """Fingerprints of all sequences in order; finds duplicates."""

    def __init__(self) -> None:
        self._pairs: list[np.ndarray] = []
        self._vectors: dict[int, np.ndarray] = {}

    def of(self, rows: np.ndarray) -> np.ndarray:
        """Fingerprints of rows [n, length], uint64 [n, 2]."""
        unsigned = rows.astype(rows.dtype.newbyteorder("="), copy=False).view(f"u{rows.dtype.itemsize}")
        v, w = self._vectors_of(rows.shape[1])
        return np.stack([np.einsum("ij,j->i", unsigned, v), np.einsum("ij,j->i", unsigned, w)], axis=1)

    def add(self, fingerprints: np.ndarray) -> None:
        """Add the fingerprints of a file."""
        self._pairs.append(fingerprints)

    def repeated(self) -> tuple[np.ndarray, np.ndarray]:
        """(numbers of repeated sequences, numbers of their first occurrences), int64."""
        if not self._pairs:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        pairs = np.concatenate(self._pairs)
        order = np.lexsort((pairs[:, 1], pairs[:, 0]))  # stable: the first occurrence leads its group
        sorted_pairs = pairs[order]
        leads = np.concatenate([[True], (sorted_pairs[1:] != sorted_pairs[:-1]).any(axis=1)])
        first = order[np.maximum.accumulate(np.where(leads, np.arange(len(order)), 0))]
        later = np.argsort(order[~leads])
        return order[~leads][later], first[~leads][later]

    def _vectors_of(self, length: int) -> np.ndarray:
        if length not in self._vectors:
            draw = np.random.Generator(np.random.PCG64(length))
            self._vectors[length] = draw.integers(0, 2**64, (2, length), dtype=np.uint64) | np.uint64(1)
        return self._vectors[length]
