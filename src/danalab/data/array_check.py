"""The check of arrays, which are read file by file, each once.

    fingerprint of a sequence x:  (sum_j x_j v_j mod 2^64, sum_j x_j w_j mod 2^64),   v, w fixed odd random numbers

Two different sequences share both sums with a probability below 2^-80, since ids are far below 2^32.
Source of the bound: multilinear hashing, Carter and Wegman 1979.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from functools import lru_cache
from pathlib import Path

import numpy as np

from danalab.data.array_files import (
    BadArrayError,
    blocks,
    by_sequence,
    chosen_rows,
    files_by_split,
    open_array,
    verify_archive,
)
from danalab.data.layout import CheckOptions, Finding, IdCounts, Validation, short_name
from danalab.data.tokenizers import load_tokenizer


def check_arrays(path: Path, result: Validation, options: CheckOptions) -> None:
    """Fill `result` from the arrays of a folder, or from a single one."""
    folder = path if path.is_dir() else path.parent
    by_split = files_by_split(folder)[0] if path.is_dir() else {"train": [path]}
    result.errors += [
        Finding(split, "this split has no arrays") for split, paths in by_split.items() if not paths
    ]
    if options.vocab_size is None and (folder / "tokenizer.json").is_file():
        result.vocab_size = load_tokenizer(folder).n_tokens
    files = [file for paths in by_split.values() for file in paths]
    result.num_files = len(files)
    result.file_format = ", ".join(sorted({file.suffix for file in files}))
    checks = ArrayChecks(folder, result, options)
    divided_inside = path.is_dir() and by_sequence(folder)
    for number, file in enumerate(files):
        options.on_file(number, len(files))
        checks.read(file, divided_inside=divided_inside)
    checks.finish()


class ArrayChecks:
    """Reads files one by one; `finish` compares them with each other."""

    def __init__(self, folder: Path, result: Validation, options: CheckOptions):
        self._folder, self._result, self._seq_len = folder, result, options.seq_len
        self._repeats = result.warnings if options.allow_duplicates else result.errors
        self._counts = IdCounts(result.vocab_size)
        self._fingerprints = Fingerprints()
        self._owners: list[
            tuple[str, np.ndarray]
        ] = []  # (name, row numbers) of each file whose sequences are compared
        self._lengths: list[tuple[str, int]] = []
        self._seen: dict[object, str] = {}

    def read(self, path: Path, *, divided_inside: bool) -> None:
        """Check one file."""
        name = short_name(self._folder, path)
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
            outside += len(outside_at)
            if len(outside_at) and first is None:
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
        result.take(self._counts)

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
        self._result.errors.append(Finding(short_name(self._folder, path), reason))


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
