"""Layouts of data sets: kinds of folders, how each is opened and checked, and what a check says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from danalab.data.dataset import Dataset
from danalab.registry import Registry

_WIDTH = 80


@dataclass(frozen=True)
class DataLayout:
    """One way to lay out a data set; every function takes its folder."""

    name: str
    """The name that people see, e.g. "shards"."""
    matches: Callable[[Path], bool]
    """Whether the folder looks like it: a glance at names, nothing is opened."""
    splits: Callable[[Path], list[str]]
    """Names of its splits."""
    open: Callable[[Path, str], Dataset]
    """Open one split; `UserError` when it cannot be read."""
    verify: Callable[[Path], Iterator[Finding]]
    """Compare every file with its recorded hash; yields all faults."""
    facts: Callable[[Path], dict[str, Any]] = lambda _: {"source": None, "documents": {}, "text_bytes": {}}
    """Additions to `describe`: `source` (name, licence, ...) or None, and `documents` and `text_bytes` by split."""
    remarks: Callable[[Path], Iterable[str]] = lambda _: ()
    """What is odd and no fault, e.g. files that are not read."""
    suffixes: tuple[str, ...] = ()
    """Those of single files that are data sets, too."""
    check: Callable[[Path, Validation, CheckOptions], None] | None = None
    """Reads a whole folder, or a single file, into the result of `validate`; None: by `verify`, and then token by token
    the streams of its splits."""


LAYOUTS: Registry[DataLayout] = Registry("data layout")
"""Those of other software, in the order in which they are tried."""


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

    vocab_size: int | None
    seq_len: int | None
    allow_duplicates: bool
    on_file: Callable[[int, int], None]


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
    def total_sequences(self) -> int:
        return sum(self.sequences)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        facts = asdict(self)
        sequences = facts.pop("sequences")
        per_file = sequences[0] if len(set(sequences)) == 1 else sequences
        totals = {"sequences_per_file": per_file, "total_sequences": self.total_sequences}
        return {"valid": self.valid, **totals, **facts}

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
        bad_files = len({finding.file for finding in self.errors})
        head = "✓ Valid: True" if self.valid else f"✗ Valid: False ({bad_files:,} bad file(s))"
        line = "=" * _WIDTH
        mark = "✓" if self.valid else " "
        return "\n".join([line, "VALIDATION RESULTS", line, head, *(f"{mark} {row}" for row in rows), line])
