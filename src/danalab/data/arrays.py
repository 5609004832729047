"""The layout "arrays": each row of .npy, .npz or .pt files is one training sequence x, inputs x[:-1], targets x[1:].

The files lie below a folder, or below its `train/` and `val/` (`danalab data split`), or their names say the split, as
in `train_00.npy` and `valid_00.npy`. A file `NAME.rows` (a .npy of row
numbers) beside an array `NAME` lists the sequences that belong to the split.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from cachetools import LRUCache

from danalab.data.dataset import Dataset, fingerprint_of
from danalab.data.formats.shards import TokenStore
from danalab.data.layout import LAYOUTS, DataLayout
from danalab.data.order.batches import Sequences, TokenBatch, require_length
from danalab.data.tokenizers import UNKNOWN, Tokenizer, load_tokenizer
from danalab.data.tokenizers.base import padded
from danalab.errors import UserError, first_line
from danalab.files import read_json, validated, walk_files
from danalab.data.array_files import READERS, ArrayScan, BadArrayError, find_files, open_array, scan_all
from danalab.data.bare import BARE
from danalab.data.download import LAYOUT as DOWNLOAD
from danalab.data.headers import SPLIT_NAMES, split_name

if TYPE_CHECKING:
    from danalab.data.layout import CheckOptions, Validation

SPLITS = ("train", "val")
SPLIT_RECORD = "split.json"
"""Written by `danalab data split`."""
CACHE_BYTES = 4 << 30
"""Default budget for arrays that are read whole (.npz, .pt)."""
_MAPPINGS = 256  # a mapped file holds a file descriptor, and a process has about a thousand
_log = logging.getLogger(__name__)


def _open(folder: Path, split: str) -> ArrayDataset:
    files = files_by_split(folder)
    if split not in files:
        if folder.name == split and has_splits(folder.parent):  # FOLDER/val names the split itself
            return _open(folder.parent, split)
        raise UserError(f"{folder}: no split '{split}'; run danalab data split {folder} --output-path {folder}-split")
    if not files[split]:
        raise UserError(f"{folder}: the split '{split}' has no arrays")
    scans = {name: scan_all(paths) for name, paths in files.items()}
    required = by_sequence(folder)
    parts = [
        ArrayPart(path, scan, chosen_rows(path, scan.sequences, required))
        for path, scan in zip(files[split], scans[split], strict=True)
    ]
    for part in parts:
        if part.scan.length != parts[0].scan.length:
            raise UserError(
                f"{part.path}: sequences of {part.scan.length} tokens, not {parts[0].scan.length} as in {parts[0].path}"
            )
    tokenizer = load_tokenizer(folder) if (folder / "tokenizer.json").is_file() else None
    largest = max(scan.max_id for split_scans in scans.values() for scan in split_scans)
    dataset = ArrayDataset(folder, split, parts, largest + 1, tokenizer, partial(_open, folder))
    if tokenizer is not None:
        dataset.check_vocab(tokenizer.vocab_size)
    return dataset


def files_by_split(folder: Path) -> dict[str, list[Path]]:
    """The array files of each split; without splits, all files are "train"."""
    return _divided(folder)[0]


def _divided(folder: Path) -> tuple[dict[str, list[Path]], list[Path]]:
    """(files of each split, files that are not read): names of folders, then of files, say the split."""
    by_name: dict[str | None, list[Path]] = {}
    files = find_files(folder)
    for path in files:
        below = path.relative_to(folder)
        words = (SPLIT_NAMES.get(part) for part in below.parts[:-1])
        name = split_name(below.stem)
        by_name.setdefault(next(filter(None, words), name.split if name else None), []).append(path)
    train = by_name.get("train") or by_name.get(None, [])
    if has_splits(folder) or (train and ("val" in by_name or "test" in by_name)):
        splits = {"train": train, "val": by_name.get("val", [])}
        if not has_splits(folder):
            splits = {split: paths for split, paths in splits.items() if paths}
        read = {path for paths in splits.values() for path in paths}
        return splits, [path for path in files if path not in read]
    return {"train": files}, []


def has_splits(folder: Path) -> bool:
    """Whether the folder has train/ and val/, or other words for them."""
    there = {SPLIT_NAMES[name] for name in SPLIT_NAMES if (folder / name).is_dir()}
    return there >= set(SPLITS)


def _remarks(folder: Path) -> Iterator[str]:
    if unread := _divided(folder)[1]:
        names = ", ".join(path.relative_to(folder).as_posix() for path in unread[:8])
        yield f"not read: {names}{' ...' * (len(unread) > 8)}"


def by_sequence(folder: Path) -> bool:
    """Whether the folder was split by sequence."""
    record = folder / SPLIT_RECORD
    return record.is_file() and validated(SplitRecord, read_json(record), record).by == "sequence"


@dataclass(frozen=True)
class SplitRecord:
    """The part of `split.json` that opening the folder needs."""

    by: Literal["file", "sequence"]


def chosen_rows(path: Path, sequences: int, required: bool) -> np.ndarray | None:
    """The row numbers in `path`.rows; None without such a file if it is not `required`."""
    file = path.with_name(path.name + ".rows")
    if file.exists() and not file.is_file():
        raise BadArrayError(file, "not a regular file")
    try:
        rows = np.lib.format.open_memmap(file, mode="r")  # a header may claim any size; a map has the file's
    except FileNotFoundError:
        if required:
            raise BadArrayError(path, f"{file.name}, which lists the sequences of the split, is missing") from None
        return None
    except Exception as error:  # a damaged file may raise almost anything
        raise BadArrayError(file, f"damaged: {first_line(error)}") from error
    if rows.ndim != 1 or rows.dtype.kind not in "ui" or len(rows) == 0:
        raise BadArrayError(file, "not a list of row numbers")
    rows = rows.astype(np.int64)
    if rows.min() < 0 or rows.max() >= sequences or len(np.unique(rows)) < len(rows):
        raise BadArrayError(file, f"not distinct rows of an array of {sequences} sequences")
    return rows


class ArrayDataset(Dataset):
    """One split of a folder of arrays."""

    def __init__(
        self,
        path: Path,
        split: str,
        parts: Sequence[ArrayPart],
        vocab_size: int,
        tokenizer: Tokenizer | None,
        open_split: Callable[[str], Dataset],
    ):
        """Use `open_dataset`. `vocab_size`: largest id of all splits + 1."""
        self.files = ArrayFiles(parts)
        chosen = [part.chosen.tobytes() if part.chosen is not None else b"" for part in parts]
        hashes = [f"{part.scan.sha256} {some.hex()}" for part, some in zip(parts, chosen, strict=True)]
        super().__init__(
            path,
            split,
            TokenStore([], f"{path} ({split})"),
            vocab_size=tokenizer.vocab_size if tokenizer else padded(vocab_size),
            eos_id=tokenizer.eos_id if tokenizer else None,
            fingerprint=fingerprint_of(tokenizer.fingerprint if tokenizer else "arrays", hashes),
            max_ids=[part.scan.max_id for part in parts],
            tokenizer_name=tokenizer.name if tokenizer else UNKNOWN,
            open_split=open_split,
            sequence_length=self.files.length,
        )
        self.n_tokens, self.n_files = self.files.n * self.files.length, len(parts)
        self.least_vocab_size = vocab_size

    @property
    def tokenizer(self) -> Tokenizer:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The tokenizer of the ids, if `tokenizer.json` is beside the arrays."""
        if not (self.path / "tokenizer.json").is_file():
            raise UserError(f"{self.path}: no tokenizer.json beside the arrays")
        return load_tokenizer(self.path)

    def set_cache(self, budget: int) -> None:
        self.files.set_budget(budget)

    def tokens_per_epoch(self, seq_len: int) -> int:
        return self.files.n * seq_len  # the rest of each sequence is never read

    def rows(self, seq_len: int) -> ArrayRows:
        """The split as numbered sequences of `seq_len` tokens; longer ones are truncated."""
        return ArrayRows(self.files, seq_len, self.title)

    def packed(self, seq_len: int, key: bytes) -> Sequences:
        raise UserError(f"{self.title}: arrays are sequences already; leave --packing documents out")

    def check_vocab(self, vocab_size: int) -> None:
        for number, part in enumerate(self.files.parts):
            if part.scan.max_id >= vocab_size:
                for row, ids in enumerate(self.files.array(number)):
                    if len(over := np.flatnonzero(ids >= vocab_size)):
                        raise UserError(
                            f"{part.path}: token id {ids[over[0]]} at [{row}, {over[0]}] >= vocab_size {vocab_size}; "
                            "give a larger --vocab-size, or leave it out"
                        )


@dataclass(frozen=True)
class ArrayPart:
    """A file and the rows of it that belong to the split."""

    path: Path
    scan: ArrayScan
    chosen: np.ndarray | None = None
    """Row numbers, int64, in order; None: all."""

    @property
    def n(self) -> int:
        """Number of sequences of the split in this file."""
        return self.scan.sequences if self.chosen is None else len(self.chosen)


class ArrayRows:
    """The first `seq_len` + 1 tokens of each sequence. If seq_len = length, the last target is -1: no loss."""

    def __init__(self, files: ArrayFiles, seq_len: int, name: str):
        if require_length(seq_len) > files.length:
            raise UserError(f"{name}: sequences have {files.length} tokens; give --seq-len {files.length - 1} or less")
        self.n, self.seq_len = files.n, seq_len
        self._files = files
        self._width = min(seq_len + 1, files.length)

    def read(self, numbers: np.ndarray) -> TokenBatch:
        tokens = np.empty((len(numbers), self._width), np.int64)
        self._files.read_into(numbers, self._width, tokens)
        inputs = torch.empty(len(numbers), self.seq_len, dtype=torch.int64)
        targets = torch.empty_like(inputs)
        np.copyto(inputs.numpy(), tokens[:, : self.seq_len])
        np.copyto(targets.numpy()[:, : self._width - 1], tokens[:, 1:])
        targets[:, self._width - 1 :] = -1
        return inputs, targets


class ArrayFiles:
    """Numbered sequences of all parts; files are mapped or read on demand."""

    def __init__(self, parts: Sequence[ArrayPart], cache_bytes: int = CACHE_BYTES):
        self.parts = list(parts)
        self.ends = np.cumsum([part.n for part in self.parts])
        self.n = int(self.ends[-1])
        self.length = self.parts[0].scan.length
        self.loaded = _cache_of(cache_bytes)
        self._mapped: LRUCache[int, np.ndarray] = LRUCache(_MAPPINGS)
        self._lock = threading.Lock()

    def set_budget(self, budget: int) -> None:
        """Replace the cache by one of `budget` bytes; warns if the files that need it do not fit."""
        self.loaded = _cache_of(budget)
        scans = [part.scan for part in self.parts if part.path.suffix != ".npy"]
        whole = sum(scan.sequences * scan.length * scan.item_bytes for scan in scans)
        if whole > budget:
            _log.warning(
                "%s: %.1f GiB of .pt and .npz exceed the cache of %.1f GiB, so files are read repeatedly; "
                "save them as .npy, which needs no cache, or give a larger --array-cache-gib",
                self.parts[0].path.parent, whole / 2**30, budget / 2**30,
            )  # fmt: skip

    def array(self, number: int) -> np.ndarray:
        """The array of a part, [sequences, length]."""
        part = self.parts[number]
        cache = self._mapped if part.path.suffix == ".npy" else self.loaded
        with self._lock:
            array = cache.get(number)
            if array is None:
                array = open_array(part.path)
                with contextlib.suppress(ValueError):  # larger than the whole cache
                    cache[number] = array
        if array.shape != (part.scan.sequences, part.scan.length):
            raise UserError(f"{part.path}: its shape changed after it was opened; start again")
        return array

    def read_into(self, numbers: np.ndarray, width: int, result: np.ndarray) -> None:
        """The first `width` tokens of the sequences `numbers`, into `result` [len(numbers), width]."""
        files = np.searchsorted(self.ends, numbers, side="right")
        for number in np.unique(files).tolist():
            mine = np.flatnonzero(files == number)
            part = self.parts[number]
            local = numbers[mine] - (int(self.ends[number]) - part.n)
            rows = local if part.chosen is None else part.chosen[local]
            result[mine] = self.array(number)[rows, :width]


def _cache_of(budget: int) -> LRUCache[int, np.ndarray]:
    """Arrays by number within `budget` bytes; the least recently used one goes first."""
    return LRUCache(budget, lambda array: array.nbytes)


def _check(path: Path, result: Validation, options: CheckOptions) -> None:
    from danalab.data.array_check import check_arrays

    check_arrays(path, result, options)


# Nothing is recorded of arrays, so there is nothing to compare them with; `check` reads them through.
LAYOUT = DataLayout(
    "arrays",
    lambda folder: any(path.suffix in READERS for path in walk_files(folder)),
    lambda folder: list(files_by_split(folder)),
    _open,
    lambda folder: iter(()),
    remarks=_remarks,
    suffixes=tuple(READERS),
    check=_check,
)
for _layout in (DOWNLOAD, BARE, LAYOUT):  # streams of one dimension are bare files, of two dimensions arrays
    LAYOUTS.add(_layout.name, _layout)
