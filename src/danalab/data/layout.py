"""Layouts of data sets, three kinds of folders: how each is opened, checked and described; and what a check says.

Shards      manifest.json of `danalab data prepare`         formats/prepared.py
BareFiles   train.bin and val.bin of other software         bare.py
Arrays      .npy, .pt of shape [sequences, length]          arrays.py
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from danalab.data.dataset import Dataset
from danalab.errors import UserError

_BLOCK = 1 << 20
_COUNT_TOKENS = 1 << 19  # they stay in cache when widened


class Layout(ABC):
    """A data set on disk, in one of the layouts."""

    name: ClassVar[str]
    """The name that people see, e.g. "shards"."""

    def __init__(self, folder: Path):
        """UserError: what describes the data set cannot be read."""
        self.folder = folder

    @classmethod
    @abstractmethod
    def matches(cls, folder: Path) -> bool:
        """Whether the folder looks like it: a glance at names."""

    @abstractmethod
    def splits(self) -> list[str]:
        """Names of its splits."""

    @abstractmethod
    def open(self, split: str) -> Dataset:
        """Open one split; `UserError` when it cannot be read."""

    @abstractmethod
    def check(self, result: Validation, options: CheckOptions) -> None:
        """Read everything into `result`."""

    def info(self) -> dict[str, Any]:
        """What is recorded: `source` (name, licence, ...) or None, and `documents` and `text_bytes` by split."""
        return {"source": None, "documents": {}, "text_bytes": {}}

    def remarks(self) -> list[str]:
        """What is odd and no fault, e.g. files that are not read."""
        return []


@dataclass(frozen=True)
class Finding:
    """Something wrong with a data set."""

    file: str
    """The file, or the folder."""
    reason: str
    position: tuple[int, ...] | None = None
    """(sequence, token) in an array, (token,) in a stream; None for the file as a whole."""

    def __str__(self) -> str:
        where = "" if self.position is None else f" [{', '.join(map(str, self.position))}]"
        return f"{self.file}{where}: {self.reason}"


@dataclass(frozen=True)
class CheckOptions:
    """What `validate` was asked for; see there."""

    vocab_size: int | None = None
    seq_len: int | None = None
    allow_duplicates: bool = False
    on_file: Callable[[int, int], None] = lambda done, total: None


@dataclass
class Validation:
    """The result; counts cover the readable files."""

    path: str
    layout: str
    """arrays, shards, bare or none."""
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
    def total_sequences(self) -> int:
        return sum(self.sequences)

    def take(self, counts: IdCounts) -> None:
        """Take over the statistics of the ids."""
        weights = counts.counts.astype(np.float64)
        self.unique_tokens = int(np.count_nonzero(weights))
        self.avg_token_value = float(weights @ np.arange(len(weights)) / max(weights.sum(), 1.0))
        self.min_id, self.max_id = counts.low, counts.high

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        facts = asdict(self)
        sequences = facts.pop("sequences")
        per_file = sequences[0] if len(set(sequences)) == 1 else sequences
        totals = {"sequences_per_file": per_file, "total_sequences": self.total_sequences}
        return {"valid": self.valid, **totals, **facts}

    def as_text(self) -> str:
        """What was found, for people."""
        bad = len({finding.file for finding in self.errors})
        verdict = "valid" if self.valid else f"not valid, {bad:,} bad file{'s' * (bad > 1)}"
        unit = "documents" if self.sequence_length is None else f"sequences of {self.sequence_length:,}"
        files = f"{self.num_files:,} {self.file_format} file{'s' * (self.num_files != 1)}"
        lines = [
            f"{self.path}: {verdict}",
            f"  {amount(self.total_tokens)} tokens in {self.total_sequences:,} {unit}, {files}",
        ]
        if self.min_id is not None:
            lines.append(
                f"  {self.unique_tokens:,} different ids of {self.vocab_size:,}: {self.min_id:,} to {self.max_id:,}, "
                f"on average {self.avg_token_value:,.1f}"
            )
        return "\n".join(lines)


def amount(count: float) -> str:
    """A number of things, e.g. 98,304, 1.115M, 19.3B."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if count >= size:
            return f"{count / size:.4g}{unit}"
    return f"{count:,.0f}"


class IdCounts:
    """Counts of the ids in [0, vocab_size)."""

    def __init__(self, vocab_size: int):
        self.vocab_size = vocab_size
        self.counts = np.zeros(vocab_size, np.int64)
        self.low: int | None = None
        """Smallest id, including those outside of the vocabulary."""
        self.high: int | None = None

    def add(self, ids: np.ndarray) -> np.ndarray:
        """Count ids of any shape; returns the positions of those outside of the vocabulary."""
        flat = ids.reshape(-1)
        if not len(flat):
            return np.empty(0, np.int64)
        low, high = int(flat.min()), int(flat.max())
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)
        outside = np.empty(0, np.int64)
        if low < 0 or high >= self.vocab_size:
            wrong = (flat < 0) | (flat >= self.vocab_size)
            outside, flat = np.flatnonzero(wrong), flat[~wrong]
        for start in range(0, len(flat), _COUNT_TOKENS):
            counted = np.bincount(flat[start : start + _COUNT_TOKENS].astype(np.intp))
            self.counts[: len(counted)] += counted
        return outside


def count_tokens(layout: Layout, result: Validation, options: CheckOptions) -> None:
    """Read the token streams of a layout that can be opened into `result`."""
    result.file_format = ".bin"
    opened: list[Dataset] = []
    try:
        for split in layout.splits():
            opened.append(layout.open(split))
    except UserError as error:
        if not result.errors:
            result.errors.append(Finding(str(layout.folder), str(error)))
    if opened:
        result.vocab_size = options.vocab_size or opened[0].vocab_size
    counts = IdCounts(result.vocab_size)
    shards = [(dataset, shard) for dataset in opened for shard in dataset.store.shards]
    result.num_files = len(shards)
    for number, (dataset, shard) in enumerate(shards):
        options.on_file(number, len(shards))
        documents, bad = 0, None
        tokens = shard.tokens()
        for start in range(0, len(tokens), _BLOCK):
            block = tokens[start : start + _BLOCK]
            documents += int((block == dataset.eos_id).sum())
            outside = counts.add(block)
            if len(outside) and bad is None:
                bad = start + int(outside[0])
        name = short_name(layout.folder, shard.path)
        if bad is not None and name not in {finding.file for finding in result.errors}:
            reason = f"token id {tokens[bad]} is outside the vocabulary [0, {result.vocab_size})"
            result.errors.append(Finding(name, reason, (bad,)))
        result.sequences.append(documents)
        result.total_tokens += len(tokens)
    result.take(counts)


def short_name(folder: Path, path: str | Path) -> str:
    """A file of a data set in messages."""
    return Path(path).relative_to(folder).as_posix() if Path(path).is_relative_to(folder) else str(path)


def not_read(names: list[str]) -> list[str]:
    """The remark on files that are left out."""
    return [f"not read: {', '.join(names[:8])}{' ...' * (len(names) > 8)}"] if names else []
