"""`validate`: read a whole data set, list all its faults, and compute its statistics.

Reading streams; it needs a few MiB, and 16 bytes per sequence of an array.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from danalab.data.dataset import Dataset
from danalab.data.formats.shards import MAX_VOCAB
from danalab.data.layout import CheckOptions, DataLayout, Finding, Validation
from danalab.data.open import layout_of, layouts, open_dataset
from danalab.errors import UserError

GPT2_VOCAB = 50_257
_BLOCK = 1 << 20
_COUNT_TOKENS = 1 << 19  # they stay in cache when widened


def validate(
    path: str | Path,
    *,
    vocab_size: int | None = None,
    seq_len: int | None = None,
    allow_duplicates: bool = False,
    on_file: Callable[[int, int], None] = lambda done, total: None,
) -> Validation:
    """Read a whole data set, or one file of a layout that has single files, and list its faults.

    Args:
        vocab_size: upper bound of the ids; by default that of the tokenizer beside the data, else GPT-2's 50,257.
        seq_len: required tokens per sequence of an array; by default the most common length.
        allow_duplicates: report equal sequences as warnings, not as errors.
        on_file: called with the number of finished files and of all files.
    """
    path = Path(path)
    if not os.path.exists(path):
        raise UserError(f"{path}: no such file or folder")
    for name, value in (("--vocab-size", vocab_size), ("--seq-len", seq_len)):
        if value is not None and not 1 <= value <= MAX_VOCAB:
            raise UserError(f"{name} is {value}; it must be between 1 and {MAX_VOCAB:,}")
    options = CheckOptions(vocab_size, seq_len, allow_duplicates, on_file)
    single = {suffix: layout for layout in layouts() for suffix in layout.suffixes}
    layout = single.get(path.suffix) if path.is_file() else layout_of(path)
    result = Validation(str(path), layout.name if layout else "none", "", 0, vocab_size or GPT2_VOCAB)
    if layout is None:
        wrong = (
            f"not an array file ({', '.join(single)})"
            if path.is_file()
            else ("no data set in it: no manifest.json, no train.bin, no arrays")
        )
        result.errors.append(Finding(str(path), wrong))
    elif layout.check is not None:
        layout.check(path, result, options)
    else:
        try:
            for fault in layout.verify(path):
                result.errors.append(replace(fault, file=short_name(path, fault.file)))
        except UserError as error:  # of a damaged manifest: nothing else can be checked
            result.errors.append(Finding(str(path), str(error).removeprefix(f"{path}: ")))
        if layout.name != "download":
            _count_tokens(path, layout, result, options)
    if layout is not None and path.is_dir() and result.valid:
        result.warnings += [Finding(str(path), remark) for remark in layout.remarks(path)]
    result.errors.sort(key=lambda finding: finding.file)
    return result


def _count_tokens(folder: Path, layout: DataLayout, result: Validation, options: CheckOptions) -> None:
    """The statistics of the shards and bare files that can be opened."""
    result.file_format = ".bin"
    opened: list[Dataset] = []
    try:
        for split in layout.splits(folder):
            opened.append(open_dataset(folder, split))
    except UserError as error:
        if not result.errors:
            result.errors.append(Finding(str(folder), str(error)))
    if opened:
        result.vocab_size = options.vocab_size or opened[0].vocab_size
    counts = IdCounts(result.vocab_size)
    shards = [(dataset, shard) for dataset in opened for shard in dataset.store.shards]
    result.num_files = len(shards)
    for number, (dataset, shard) in enumerate(shards):
        options.on_file(number, len(shards))
        documents = 0
        name = short_name(folder, shard.path)
        bad: tuple[int, int] | None = None
        try:
            tokens = shard.tokens()
            for start in range(0, len(tokens), _BLOCK):
                block = tokens[start : start + _BLOCK]
                documents += int((block == dataset.eos_id).sum())
                outside_at = counts.add(block)
                if outside_at is not None and bad is None:
                    bad = start + int(outside_at[0]), int(block[outside_at[0]])
        except UserError as error:
            result.errors.append(Finding(name, str(error)))
            continue
        if bad is not None and options.vocab_size is not None:
            reason = f"token id {bad[1]} is outside the vocabulary [0, {result.vocab_size})"
            result.errors.append(Finding(name, reason, (bad[0],)))
        result.sequences.append(documents)
        result.total_tokens += len(tokens)
    result.unique_tokens, result.avg_token_value = counts.unique, counts.mean
    result.min_id, result.max_id = counts.low, counts.high


def short_name(folder: Path, path: str | Path) -> str:
    """A file of a data set in messages."""
    return Path(path).relative_to(folder).as_posix() if Path(path).is_relative_to(folder) else str(path)


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
