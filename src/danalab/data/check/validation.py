"""`validate`: the checks of a path in any layout, and their result; arrays are read file by file, each once.

    fingerprint of a sequence x:  (sum_j x_j v_j mod 2^64, sum_j x_j w_j mod 2^64),   v, w fixed odd random numbers

Two different sequences share both sums with a probability below 2^-80, since ids are far below 2^32.
Source of the bound: multilinear hashing, Carter and Wegman 1979.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from danalab.data.check.result import IdCounts, Validation
from danalab.data.dataset import DataLayout, Dataset, Finding
from danalab.data.formats.array_dataset import by_sequence, chosen_rows, files_by_split
from danalab.data.formats.array_files import READERS, BadArrayError, blocks, open_array, verify_archive
from danalab.data.formats.shards import MAX_VOCAB
from danalab.data.open import layout_of, open_dataset
from danalab.data.tokenizers import load_tokenizer
from danalab.errors import UserError

GPT2_VOCAB = 50_257
_BLOCK = 1 << 20


def validate(
    path: str | Path,
    *,
    vocab_size: int | None = None,
    seq_len: int | None = None,
    allow_duplicates: bool = False,
    on_file: Callable[[int, int], None] = lambda done, total: None,
) -> Validation:
    """Read a whole data set, or one array file, and list its faults.

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
    layout = None if path.is_file() else layout_of(path)
    result = Validation(str(path), layout.name if layout else "arrays", "", 0, vocab_size or GPT2_VOCAB)
    if path.is_file() and path.suffix not in READERS:
        result.errors.append(Finding(str(path), f"not an array file ({', '.join(READERS)})"))
    elif layout is None and path.is_dir():
        result.layout = "none"
        result.errors.append(Finding(str(path), "no data set in it: no manifest.json, no train.bin, no arrays"))
    elif result.layout == "arrays":
        folder, files = (path, None) if layout else (path.parent, [path])
        if vocab_size is None and (folder / "tokenizer.json").is_file():
            try:
                result.vocab_size = load_tokenizer(folder).n_tokens
            except UserError as error:
                result.errors.append(Finding("tokenizer.json", str(error)))
        check_arrays(folder, files, result, seq_len=seq_len, allow_duplicates=allow_duplicates, on_file=on_file)
    elif layout is not None:
        try:
            for fault in layout.verify(path):
                result.errors.append(replace(fault, file=_short(path, fault.file)))
        except UserError as error:  # of a damaged manifest: nothing else can be checked
            result.errors.append(Finding(str(path), str(error).removeprefix(f"{path}: ")))
        if layout.name != "download":
            _count_tokens(path, layout, result, vocab_size, on_file)
    if layout is not None and result.valid:
        result.warnings += [Finding(str(path), remark) for remark in layout.remarks(path)]
    result.errors.sort(key=lambda finding: finding.file)
    return result


def _count_tokens(
    folder: Path, layout: DataLayout, result: Validation, vocab_size: int | None, on_file: Callable[[int, int], None]
) -> None:
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
        result.vocab_size = vocab_size or opened[0].vocab_size
    counts = IdCounts(result.vocab_size)
    shards = [(dataset, shard) for dataset in opened for shard in dataset.store.shards]
    result.num_files = len(shards)
    for number, (dataset, shard) in enumerate(shards):
        on_file(number, len(shards))
        documents = 0
        name = _short(folder, shard.path)
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
        if bad is not None and vocab_size is not None:
            reason = f"token id {bad[1]} is outside the vocabulary [0, {result.vocab_size})"
            result.errors.append(Finding(name, reason, (bad[0],)))
        result.sequences.append(documents)
        result.total_tokens += len(tokens)
    result.unique_tokens, result.avg_token_value = counts.unique, counts.mean
    result.min_id, result.max_id = counts.low, counts.high


def _short(folder: Path, path: str | Path) -> str:
    return Path(path).relative_to(folder).as_posix() if Path(path).is_relative_to(folder) else str(path)


def check_arrays(
    folder: Path,
    files: list[Path] | None,
    result: Validation,
    *,
    seq_len: int | None,
    allow_duplicates: bool,
    on_file: Callable[[int, int], None],
) -> None:
    """Fill `result` from the arrays of a folder, or only from `files`."""
    divided_inside = False
    if files is None:
        divided_inside = by_sequence(folder)
        by_split = files_by_split(folder)
        files = [path for paths in by_split.values() for path in paths]
        result.errors += [Finding(split, "this split has no arrays") for split, paths in by_split.items() if not paths]
    result.num_files = len(files)
    result.file_format = ", ".join(sorted({path.suffix for path in files}))
    checks = ArrayChecks(folder, result, seq_len, allow_duplicates)
    for number, path in enumerate(files):
        on_file(number, len(files))
        checks.read(path, divided_inside=divided_inside)
    checks.finish()


class ArrayChecks:
    """Reads files one by one; `finish` compares them with each other."""

    def __init__(self, folder: Path, result: Validation, seq_len: int | None, allow_duplicates: bool):
        self._folder, self._result, self._seq_len = folder, result, seq_len
        self._repeats = result.warnings if allow_duplicates else result.errors
        self._counts = IdCounts(result.vocab_size)
        self._fingerprints = Fingerprints()
        self._owners: list[tuple[str, np.ndarray]] = []  # (name, row numbers) of each file whose sequences are compared
        self._lengths: list[tuple[str, int]] = []
        self._seen: dict[object, str] = {}

    def read(self, path: Path, *, divided_inside: bool) -> None:
        """Check one file."""
        name = _short(self._folder, path)
        try:
            array = open_array(path)
            verify_archive(path)
            rows = chosen_rows(path, len(array), divided_inside)
            status = path.stat()
            identity = (status.st_dev, status.st_ino)
            if rows is None and identity in self._seen:
                self._error(path, f"the same file as {self._seen[identity]}")
                return
            self._seen.setdefault(identity, name)
            self._lengths.append((name, array.shape[1]))
            self._stream(path, name, array, rows)
        except BadArrayError as error:
            self._error(path, error.reason)
        except (OSError, ValueError) as error:
            self._error(path, f"cannot be read: {error}")

    def _stream(self, path: Path, name: str, array: np.ndarray, chosen: np.ndarray | None) -> None:
        prints, outside, first = [], 0, None
        for start, rows in blocks(path, array):
            prints.append(self._fingerprints.of(rows))
            counted = rows
            numbers = np.arange(start, start + len(rows))
            if chosen is not None:
                mine = np.isin(numbers, chosen)
                counted, numbers = rows[mine], numbers[mine]
            outside_at = self._counts.add(counted)
            if outside_at is not None:
                outside += len(outside_at)
                if first is None:
                    row, column = divmod(int(outside_at[0]), rows.shape[1])
                    first = int(numbers[row]), column, int(counted[row, column])
        if first is not None:
            row, column, bad = first
            more = f", the first of {outside:,}" if outside > 1 else ""
            reason = f"token id {bad} is outside the vocabulary [0, {self._result.vocab_size}){more}"
            self._result.errors.append(Finding(name, reason, (row, column)))
        fingerprints = np.concatenate(prints)
        numbers = np.arange(len(array)) if chosen is None else np.sort(chosen)
        self._result.sequences.append(len(numbers))
        self._result.total_tokens += len(numbers) * array.shape[1]
        digest = hashlib.blake2b(fingerprints[numbers].tobytes(), digest_size=16).digest()
        content = (len(numbers), array.shape[1], digest)
        if content in self._seen:
            self._repeats.append(Finding(name, f"the same content as {self._seen[content]}"))
            return
        self._seen[content] = name
        self._fingerprints.add(fingerprints[numbers])
        self._owners.append((name, numbers))

    def finish(self) -> None:
        """Compare the lengths and sequences of all files."""
        result = self._result
        if self._lengths:
            usual = self._seq_len or Counter(length for _, length in self._lengths).most_common(1)[0][0]
            result.sequence_length = usual
            for name, length in self._lengths:
                if length != usual:
                    expected = "expected" if self._seq_len else "in most files"
                    result.errors.append(Finding(name, f"sequences of {length} tokens, {usual} {expected}"))
        self._compare_sequences()
        result.unique_tokens, result.avg_token_value = self._counts.unique, self._counts.mean
        result.min_id, result.max_id = self._counts.low, self._counts.high

    def _compare_sequences(self) -> None:
        later, first = self._fingerprints.repeated()
        if not len(later):
            return
        ends = np.cumsum([len(numbers) for _, numbers in self._owners])
        files = np.searchsorted(ends, later, side="right")
        for file in np.unique(files).tolist():
            mine = np.flatnonzero(files == file)
            name, row = self._place(ends, int(later[mine[0]]))
            other, other_row = self._place(ends, int(first[mine[0]]))
            more = f"; so are {len(mine) - 1:,} others of this file" if len(mine) > 1 else ""
            reason = f"a copy of sequence {other_row} of {other}{more}"
            self._repeats.append(Finding(name, reason, (row,)))

    def _place(self, ends: np.ndarray, number: int) -> tuple[str, int]:
        file = int(np.searchsorted(ends, number, side="right"))
        name, numbers = self._owners[file]
        return name, int(numbers[number - (int(ends[file]) - len(numbers))])

    def _error(self, path: Path, reason: str) -> None:
        self._result.errors.append(Finding(_short(self._folder, path), reason))


class Fingerprints:
    """Fingerprints of all sequences in order; finds duplicates."""

    def __init__(self) -> None:
        self._pairs: list[np.ndarray] = []

    def of(self, rows: np.ndarray) -> np.ndarray:
        """Fingerprints of rows [n, length], uint64 [n, 2]."""
        unsigned = rows.astype(rows.dtype.newbyteorder("="), copy=False).view(f"u{rows.dtype.itemsize}")
        v, w = _vectors(rows.shape[1])
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


@lru_cache(maxsize=16)
def _vectors(length: int) -> np.ndarray:
    """(v, w) for sequences of a length."""
    draw = np.random.Generator(np.random.PCG64(length))
    return draw.integers(0, 2**64, (2, length), dtype=np.uint64) | np.uint64(1)
