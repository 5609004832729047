"""The result of a validation: plain values, how they are printed, and the streaming count of ids behind them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from danalab.data.dataset import Finding

_WIDTH = 80
_COUNT_TOKENS = 1 << 19  # they stay in cache when widened


@dataclass
class Validation:
    """The result; counts cover the readable files."""

    path: str
    layout: str
    """arrays, shards, bare, download or none."""
    file_format: str
    """Suffixes of the files."""
    num_files: int
    vocab_size: int
    errors: list[Finding] = field(default_factory=list)
    warnings: list[Finding] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)
    """Number of sequences of each readable file; of documents, for a stream."""
    sequence_length: int | None = None
    """Tokens per sequence; None for documents."""
    total_tokens: int = 0
    unique_tokens: int = 0
    avg_token_value: float = 0.0
    min_id: int | None = None
    max_id: int | None = None

    @property
    def valid(self) -> bool:
        return not self.errors

    @property
    def bad_files(self) -> int:
        return len({finding.file for finding in self.errors})

    @property
    def total_sequences(self) -> int:
        return sum(self.sequences)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        alike = len(set(self.sequences)) == 1
        return {
            "valid": self.valid,
            "path": self.path,
            "layout": self.layout,
            "file_format": self.file_format,
            "num_files": self.num_files,
            "sequences_per_file": self.sequences[0] if alike else self.sequences,
            "total_sequences": self.total_sequences,
            "sequence_length": self.sequence_length,
            "total_tokens": self.total_tokens,
            "vocab_size": self.vocab_size,
            "unique_tokens": self.unique_tokens,
            "avg_token_value": self.avg_token_value,
            "min_id": self.min_id,
            "max_id": self.max_id,
            "errors": [_plain(finding) for finding in self.errors],
            "warnings": [_plain(finding) for finding in self.warnings],
        }

    def as_text(self) -> str:
        """The table for people."""
        length = "that of each document" if self.sequence_length is None else f"{self.sequence_length:,}"
        rows = [f"Files: {self.num_files}"]
        if self.layout != "download":  # text, which has no tokens yet
            rows += [
                f"Total sequences: {self.total_sequences:,}",
                f"Sequence length: {length}",
                f"Total tokens: {self.total_tokens:,} ({self.total_tokens / 1e9:.2f}B)",
                f"Vocab size: {self.vocab_size:,}",
                f"Unique tokens: {self.unique_tokens:,}",
                f"Avg token value: {self.avg_token_value:.2f}",
            ]
        head = "✓ Valid: True" if self.valid else f"✗ Valid: False ({self.bad_files:,} bad file(s))"
        line = "=" * _WIDTH
        mark = "✓" if self.valid else " "
        return "\n".join([line, "VALIDATION RESULTS", line, head, *(f"{mark} {row}" for row in rows), line])


def _plain(finding: Finding) -> dict[str, Any]:
    position = None if finding.position is None else list(finding.position)
    return {"file": finding.file, "reason": finding.reason, "position": position}


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
