"""`validate`: read a whole data set, list all its faults, and compute its statistics.

Reading streams; it needs some MiB, and about 200 bytes per sequence of an array, whose hashes of 64 bits are compared.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from danalab.data.arrays import SUFFIXES, Arrays
from danalab.data.formats.shards import Shard
from danalab.data.layout import Layout
from danalab.data.open import NOTHING, layout_of
from danalab.errors import UserError

GPT2_VOCAB = 50_257


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


def validate(
    path: str | Path,
    vocab_size: int | None = None,
    seq_len: int | None = None,
    *,
    allow_duplicates: bool = False,
) -> Validation:
    """Read a whole data set, or a single array file, and list its faults.

    Args:
        vocab_size: upper bound of the ids; by default that of the tokenizer beside the data, else GPT-2's 50,257.
        seq_len: required tokens per sequence of an array; by default the most common length.
        allow_duplicates: report equal sequences as warnings, not as errors.
    """
    path = Path(path)
    if not os.path.exists(path):
        raise UserError(f"{path}: no such file or folder")
    result = Validation(str(path), "none", "", 0, vocab_size or GPT2_VOCAB)
    try:
        kind = Arrays if path.suffix in SUFFIXES and path.is_file() else layout_of(path)
        if kind is None:
            raise UserError(f"no data set ({NOTHING})")
        layout, result.layout = kind(path), kind.name
        result.errors += [Finding(name, reason) for name, reason in layout.faults()]
        lengths, copies = _read_files(layout, result, vocab_size)
        if lengths:
            usual = result.sequence_length = seq_len or Counter(lengths.values()).most_common(1)[0][0]
            expected = "expected" if seq_len else "in most files"
            result.errors += [
                Finding(name, f"sequences of {length} tokens, {usual} {expected}")
                for name, length in lengths.items()
                if length != usual
            ]
        (result.warnings if allow_duplicates else result.errors).extend(copies)
        if result.valid:
            result.warnings += [Finding(str(path), remark) for remark in layout.remarks()]
    except UserError as error:  # of a damaged manifest: nothing else can be checked
        result.errors.append(Finding(str(path), str(error).removeprefix(f"{path}: ")))
    result.errors.sort(key=lambda finding: finding.file)
    return result


def _read_files(
    layout: Layout, result: Validation, vocab_size: int | None
) -> tuple[dict[str, int], list[Finding]]:
    """Read all files into `result`; (the sequences' length in each array by its name, repeated sequences)."""
    from rich.console import Console
    from rich.progress import track

    files = [path for paths in layout.files.values() for path in paths]
    result.num_files, result.file_format = len(files), ", ".join(sorted({file.suffix for file in files}))
    result.errors += [
        Finding(split, "this split has no files") for split, paths in layout.files.items() if not paths
    ]
    bad = {finding.file for finding in result.errors}
    shards: dict[str, Shard] = {}
    for file in files:
        name = file.relative_to(layout.folder).as_posix()
        try:
            shards[name] = layout.open_file(file)
        except UserError as error:
            if name not in bad:
                result.errors.append(Finding(name, str(error).removeprefix(f"{file}: ")))
    encoding = next((layout.encoding(shard) for shard in shards.values()), None)
    if encoding is not None and vocab_size is None:
        result.vocab_size = encoding.vocab_size
    counts = np.zeros(result.vocab_size, np.int64)
    origins: dict[bytes, tuple[str, int]] = {}
    copies: list[Finding] = []
    shown = {"console": Console(stderr=True), "transient": True, "disable": not sys.stderr.isatty()}
    for name, shard in track(shards.items(), "reading", len(shards), **shown):
        documents, outside, first, digests = 0, 0, None, list[bytes]()
        for start, ids in shard.blocks():
            low, high = int(ids.min()), int(ids.max())
            result.min_id = low if result.min_id is None else min(result.min_id, low)
            result.max_id = high if result.max_id is None else max(result.max_id, high)
            wrong = np.flatnonzero((ids < 0) | (ids >= len(counts)))
            if len(wrong):
                first = first or (start + int(wrong[0]), ids[wrong[0]])
                outside += len(wrong)
            counts += np.bincount(np.delete(ids, wrong).astype(np.intp), minlength=len(counts))
            if shard.length:
                rows = ids.astype("<u4").reshape(-1, shard.length)
                digests += [blake2b(row, digest_size=8).digest() for row in map(bytes, rows)]
            elif encoding is not None:
                documents += int((ids == encoding.eos_id).sum())
        if first is not None and name not in bad:
            more = f", the first of {outside:,}" if outside > 1 else ""
            reason = f"token id {first[1]} is outside the vocabulary [0, {len(counts)}){more}"
            position = divmod(first[0], shard.length) if shard.length else (first[0],)
            result.errors.append(Finding(name, reason, position))
        found = [origins.setdefault(digest, (name, row)) for row, digest in enumerate(digests)]
        repeated = [row for row, origin in enumerate(found) if origin != (name, row)]
        if repeated:
            file, row = found[repeated[0]]
            more = f"; so are {len(repeated) - 1:,} others of this file" if len(repeated) > 1 else ""
            copies.append(Finding(name, f"a copy of sequence {row} of {file}{more}", (repeated[0],)))
        result.sequences.append(len(digests) or documents)
        result.total_tokens += shard.n_tokens
    result.unique_tokens = int(np.count_nonzero(counts))
    result.avg_token_value = float(counts @ np.arange(len(counts), dtype=np.float64) / max(counts.sum(), 1))
    return {name: shard.length for name, shard in shards.items() if shard.length}, copies
