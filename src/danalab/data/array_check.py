"""The check of arrays, which are read file by file, each once, and compared by a hash of 64 bits of each sequence."""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from pathlib import Path

import numpy as np

from danalab.data.array_files import BadArrayError, blocks, files_by_split, open_array
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
    counts = IdCounts(result.vocab_size)
    lengths: dict[str, int] = {}
    hashes: dict[str, np.ndarray] = {}
    for number, file in enumerate(files):
        options.on_file(number, len(files))
        name = short_name(folder, file)
        try:
            array = open_array(file)
            hashes[name] = _read(file, name, array, counts, result)
            lengths[name] = array.shape[1]
        except BadArrayError as error:
            result.errors.append(Finding(name, error.reason))
        except (OSError, ValueError) as error:
            result.errors.append(Finding(name, f"cannot be read: {error}"))
    result.take(counts)
    result.sequences = [len(each) for each in hashes.values()]
    result.total_tokens = sum(len(each) * lengths[name] for name, each in hashes.items())
    if hashes:
        usual = options.seq_len or Counter(lengths.values()).most_common(1)[0][0]
        result.sequence_length = usual
        expected = "expected" if options.seq_len else "in most files"
        result.errors += [
            Finding(name, f"sequences of {length} tokens, {usual} {expected}")
            for name, length in lengths.items()
            if length != usual
        ]
        repeats = result.warnings if options.allow_duplicates else result.errors
        repeats += _repeated(hashes)


def _read(path: Path, name: str, array: np.ndarray, counts: IdCounts, result: Validation) -> np.ndarray:
    """Count the ids of one file; the hashes of its sequences, uint64."""
    hashes, outside, first = [], 0, None
    for start, rows in blocks(path, array):
        wrong = counts.add(rows)
        if len(wrong) and first is None:
            row, column = divmod(int(wrong[0]), rows.shape[1])
            first = start + row, column, int(rows[row, column])
        outside += len(wrong)
        hashes += [blake2b(row, digest_size=8).digest() for row in rows.astype("<u4")]
    if first is not None:
        row, column, bad = first
        more = f", the first of {outside:,}" if outside > 1 else ""
        reason = f"token id {bad} is outside the vocabulary [0, {result.vocab_size}){more}"
        result.errors.append(Finding(name, reason, (row, column)))
    return np.frombuffer(b"".join(hashes), np.uint64)


def _repeated(hashes: dict[str, np.ndarray]) -> list[Finding]:
    """One finding for each file that repeats sequences, with the first of them."""
    names, ends = list(hashes), np.cumsum([len(each) for each in hashes.values()])
    _, first, same = np.unique(np.concatenate(list(hashes.values())), return_index=True, return_inverse=True)
    origins = first[same]
    later = np.flatnonzero(origins < np.arange(len(origins)))
    files = np.searchsorted(ends, later, side="right")

    def place(number: int) -> tuple[str, int]:
        file = int(np.searchsorted(ends, number, side="right"))
        return names[file], number - int(ends[file]) + len(hashes[names[file]])

    findings = []
    for file in np.unique(files).tolist():
        mine = later[files == file]
        name, row = place(int(mine[0]))
        other, other_row = place(int(origins[mine[0]]))
        more = f"; so are {len(mine) - 1:,} others of this file" if len(mine) > 1 else ""
        findings.append(Finding(name, f"a copy of sequence {other_row} of {other}{more}", (row,)))
    return findings
