"""The result of a validation: plain values, and how they are printed."""

from dataclasses import dataclass, field
from typing import Any

from danalab.data.formats.layouts import Finding

_WIDTH = 80


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
