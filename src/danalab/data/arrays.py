"""The layout "arrays": each row of .npy, .npz or .pt files is one training sequence x, inputs x[:-1], targets x[1:].

The files lie below a folder, or below its `train/` and `val/` (`danalab data split`), or their names say the split, as
in `train_00.npy` and `valid_00.npy`. A file `NAME.rows` (a .npy of row numbers) beside an array `NAME` lists the
sequences that belong to the split.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cachetools import LRUCache

from danalab.data.array_check import check_arrays
from danalab.data.array_files import (
    READERS,
    ArrayScan,
    by_sequence,
    chosen_rows,
    files_by_split,
    has_splits,
    open_array,
    scan_all,
)
from danalab.data.dataset import Dataset, fingerprint_of
from danalab.data.formats.shards import TokenStore, mappable
from danalab.data.layout import CheckOptions, Layout, Validation
from danalab.data.order.batches import TokenBatch, require_length
from danalab.data.tokenizers import UNKNOWN, Tokenizer, load_tokenizer
from danalab.data.tokenizers.base import padded
from danalab.errors import UserError
from danalab.files import walk_files

CACHE_BYTES = 4 << 30
"""Default budget for arrays that are read whole (.npz, .pt)."""
_log = logging.getLogger(__name__)


class Arrays(Layout):
    """A folder of arrays."""

    name = "arrays"

    @classmethod
    def matches(cls, folder: Path) -> bool:
        return any(path.suffix in READERS for path in walk_files(folder))

    def splits(self) -> list[str]:
        return list(files_by_split(self.folder)[0])

    def open(self, split: str) -> Dataset:
        folder = self.folder
        files = files_by_split(folder)[0]
        if split not in files:
            if folder.name == split and has_splits(folder.parent):  # FOLDER/val names the split itself
                return Arrays(folder.parent).open(split)
            raise UserError(
                f"{folder}: no split '{split}'; run danalab data split {folder} --output-path {folder}-split"
            )
        if not files[split]:
            raise UserError(f"{folder}: the split '{split}' has no arrays")
        scans = {name: scan_all(paths) for name, paths in files.items()}
        required = by_sequence(folder)
        parts = [
            ArrayPart(path, scan, chosen_rows(path, scan.sequences, required))
            for path, scan in zip(files[split], scans[split], strict=True)
        ]
        usual = parts[0]
        for part in parts:
            if part.scan.length != usual.scan.length:
                lengths = f"{part.scan.length} tokens, not {usual.scan.length} as in {usual.path}"
                raise UserError(f"{part.path}: sequences of {lengths}")
        tokenizer = load_tokenizer(folder) if (folder / "tokenizer.json").is_file() else None
        largest = max(scan.max_id for split_scans in scans.values() for scan in split_scans)
        dataset = ArrayDataset(folder, split, parts, largest + 1, tokenizer, self.open)
        if tokenizer is not None:
            dataset.check_vocab(tokenizer.vocab_size)
        return dataset

    def check(self, result: Validation, options: CheckOptions) -> None:
        check_arrays(self.folder, result, options)

    def remarks(self) -> list[str]:
        unread = [path.relative_to(self.folder).as_posix() for path in files_by_split(self.folder)[1]]
        return [f"not read: {', '.join(unread[:8])}{' ...' * (len(unread) > 8)}"] if unread else []


class ArrayDataset(Dataset):
    """One split of a folder of arrays."""

    def __init__(
        self,
        path: Path,
        split: str,
        parts: Sequence[ArrayPart],
        n_ids: int,
        tokenizer: Tokenizer | None,
        open_split: Callable[[str], Dataset],
    ):
        """Use `open_dataset`. `n_ids`: largest id of all splits + 1."""
        self.files = ArrayFiles(parts)
        chosen = [part.chosen.tobytes() if part.chosen is not None else b"" for part in parts]
        hashes = [f"{part.scan.sha256} {some.hex()}" for part, some in zip(parts, chosen, strict=True)]
        super().__init__(
            path,
            split,
            TokenStore([], f"{path} ({split})"),
            vocab_size=tokenizer.vocab_size if tokenizer else padded(n_ids),
            eos_id=tokenizer.eos_id if tokenizer else None,
            fingerprint=fingerprint_of(tokenizer.fingerprint if tokenizer else "arrays", hashes),
            max_ids=[part.scan.max_id for part in parts],
            tokenizer_name=tokenizer.name if tokenizer else UNKNOWN,
            open_split=open_split,
            sequence_length=self.files.length,
        )
        self.n_tokens, self.n_files = self.files.n * self.files.length, len(parts)
        self.least_vocab_size = n_ids

    def set_cache(self, budget: int) -> None:
        self.files.set_budget(budget)

    def tokens_per_epoch(self, seq_len: int) -> int:
        return self.files.n * seq_len  # the rest of each sequence is never read

    def rows(self, seq_len: int) -> ArrayRows:
        """The split as numbered sequences of `seq_len` tokens; longer ones are truncated."""
        return ArrayRows(self.files, seq_len, self.title)

    def check_vocab(self, vocab_size: int) -> None:
        for number, part in enumerate(self.files.parts):
            if part.scan.max_id >= vocab_size:
                row, column = np.argwhere(np.asarray(self.files.array(number)) >= vocab_size)[0]
                raise UserError(
                    f"{part.path}: token id {self.files.array(number)[row, column]} at [{row}, {column}] >= "
                    f"vocab_size {vocab_size}; give a larger --vocab-size, or leave it out"
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
            raise UserError(
                f"{name}: sequences have {files.length} tokens; give --seq-len {files.length - 1} or less"
            )
        self.n, self.seq_len = files.n, seq_len
        self._files = files
        self._width = min(seq_len + 1, files.length)

    def read(self, numbers: np.ndarray) -> TokenBatch:
        import torch

        tokens = self._files.read(numbers, self._width)
        inputs = torch.empty(len(numbers), self.seq_len, dtype=torch.int64)
        targets = torch.full_like(inputs, -1)
        np.copyto(inputs.numpy(), tokens[:, : self.seq_len])
        np.copyto(targets.numpy()[:, : self._width - 1], tokens[:, 1:])
        return inputs, targets


class ArrayFiles:
    """Numbered sequences of all parts; files are mapped or read on demand."""

    def __init__(self, parts: Sequence[ArrayPart], cache_bytes: int = CACHE_BYTES):
        self.parts = list(parts)
        self.ends = np.cumsum([part.n for part in self.parts])
        self.n = int(self.ends[-1])
        self.length = self.parts[0].scan.length
        self._loaded = _cache_of(cache_bytes)
        self._mapped: LRUCache[int, np.ndarray] = LRUCache(mappable(len(self.parts)))
        self._lock = threading.Lock()

    def set_budget(self, budget: int) -> None:
        """Replace the cache by one of `budget` bytes; warns if the files that need it do not fit."""
        self._loaded = _cache_of(budget)
        scans = [part.scan for part in self.parts if part.path.suffix != ".npy"]
        whole = sum(scan.sequences * scan.length * scan.item_bytes for scan in scans)
        if whole > budget:
            _log.warning(
                "%s: %.1f GiB of .pt and .npz exceed the cache of %.1f GiB, so files are read repeatedly; "
                "save them as .npy, which needs no cache, or give a larger --array-cache-gib",
                self.parts[0].path.parent,
                whole / 2**30,
                budget / 2**30,
            )

    def array(self, number: int) -> np.ndarray:
        """The array of a part, [sequences, length]."""
        part = self.parts[number]
        mapped = part.path.suffix == ".npy"
        cache = self._mapped if mapped else self._loaded
        with self._lock:
            array = cache.get(number)
            if array is None:
                array = open_array(part.path)
                if mapped or array.nbytes <= cache.maxsize:
                    cache[number] = array
        if array.shape != (part.scan.sequences, part.scan.length):
            raise UserError(f"{part.path}: its shape changed after it was opened; start again")
        if (
            mapped and part.path.stat().st_size < array.nbytes
        ):  # a read behind the file's end would kill the process
            raise UserError(f"{part.path}: truncated since the data set was opened")
        return array

    def read(self, numbers: np.ndarray, width: int) -> np.ndarray:
        """The first `width` tokens of the sequences `numbers`, int64 [len(numbers), width]."""
        result = np.empty((len(numbers), width), np.int64)
        files = np.searchsorted(self.ends, numbers, side="right")
        for number in np.unique(files).tolist():
            mine = np.flatnonzero(files == number)
            part = self.parts[number]
            local = numbers[mine] - (int(self.ends[number]) - part.n)
            rows = local if part.chosen is None else part.chosen[local]
            result[mine] = self.array(number)[rows, :width]
        return result


def _cache_of(budget: int) -> LRUCache[int, np.ndarray]:
    """Arrays by number within `budget` bytes; the least recently used one goes first."""
    return LRUCache(budget, lambda array: array.nbytes)
