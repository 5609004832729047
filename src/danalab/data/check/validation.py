"""`validate`: the checks of a path in any layout, and their result."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from danalab.data.check.arrays import check_arrays
from danalab.data.check.result import IdCounts, Validation
from danalab.data.dataset import DataLayout, Dataset, Finding
from danalab.data.formats.array_files import READERS
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
            raise UserError(f"{name} {value}: must be between 1 and {MAX_VOCAB:,}")
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
        name = _short(folder, str(shard.path))
        bad: tuple[int, int] | None = None
        try:
            tokens = shard.tokens()
            for start in range(0, len(tokens), _BLOCK):
                block = tokens[start : start + _BLOCK]
                documents += int((block == dataset.eos_id).sum())
                places = counts.add(block)
                if places is not None and bad is None:
                    bad = start + int(places[0]), int(block[places[0]])
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


def _short(folder: Path, place: str) -> str:
    return Path(place).relative_to(folder).as_posix() if Path(place).is_relative_to(folder) else place
