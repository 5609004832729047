"""The layout "arrays": each row of .npy or .pt files is one training sequence x, inputs x[:-1], targets x[1:].

The files lie below a folder, or below its `train/` and `val/` (`danalab data split`), or their names say the split, as
in `train_00.npy` and `valid_00.npy`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cachetools import LRUCache

from danalab.data.array_check import check_arrays
from danalab.data.array_files import READERS, ArrayFile, files_by_split, has_splits, open_array, scan_all
from danalab.data.dataset import Dataset, fingerprint_of
from danalab.data.formats.shards import mappable
from danalab.data.layout import CheckOptions, Layout, Validation, not_read
from danalab.data.order.batches import TokenBatch
from danalab.data.tokenizers import UNKNOWN, load_tokenizer
from danalab.data.tokenizers.base import padded
from danalab.errors import UserError
from danalab.files import walk_files


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
        by_split = files_by_split(folder)[0]
        if split not in by_split:
            if folder.name == split and has_splits(folder.parent):  # FOLDER/val names the split itself
                return Arrays(folder.parent).open(split)
            raise UserError(
                f"{folder}: no split '{split}'; run danalab data split {folder} --output-path {folder}-split"
            )
        if not by_split[split]:
            raise UserError(f"{folder}: the split '{split}' has no arrays")
        scanned = {name: scan_all(paths) for name, paths in by_split.items()}
        files = scanned[split]
        for file in files:
            if file.length != files[0].length:
                lengths = f"{file.length} tokens, not {files[0].length} as in {files[0].path}"
                raise UserError(f"{file.path}: sequences of {lengths}")
        n_ids = 1 + max(file.max_id for files in scanned.values() for file in files)
        tokenizer = load_tokenizer(folder) if (folder / "tokenizer.json").is_file() else None
        dataset = ArrayDataset(
            name=folder.name,
            tokenizer_name=tokenizer.name if tokenizer else UNKNOWN,
            vocab_size=tokenizer.vocab_size if tokenizer else padded(n_ids),
            least_vocab_size=n_ids,
            eos_id=tokenizer.eos_id if tokenizer else None,
            sequence_length=files[0].length,
            path=folder,
            split=split,
            files=files,
            fingerprint=fingerprint_of(
                tokenizer.fingerprint if tokenizer else "arrays", [file.sha256 for file in files]
            ),
            max_ids=[file.max_id for file in files],
            open_split=self.open,
        )
        dataset.check_vocab(dataset.vocab_size)
        return dataset

    def check(self, result: Validation, options: CheckOptions) -> None:
        check_arrays(self.folder, result, options)

    def remarks(self) -> list[str]:
        return not_read([path.relative_to(self.folder).as_posix() for path in files_by_split(self.folder)[1]])


@dataclass(eq=False, repr=False, kw_only=True)
class ArrayDataset(Dataset):
    """One split of a folder of arrays."""

    files: list[ArrayFile]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.n_tokens, self.n_files = (
            sum(file.sequences * file.length for file in self.files),
            len(self.files),
        )

    def tokens_per_epoch(self, seq_len: int) -> int:
        return sum(file.sequences for file in self.files) * seq_len  # the rest of each is never read

    def rows(self, seq_len: int) -> ArrayRows:
        """The split as numbered sequences of `seq_len` tokens; longer ones are truncated."""
        if seq_len > self.files[0].length:
            raise UserError(
                f"{self.title}: sequences have {self.files[0].length} tokens; "
                f"give --seq-len {self.files[0].length - 1} or less"
            )
        return ArrayRows(self.files, seq_len)

    def check_vocab(self, vocab_size: int) -> None:
        for file in self.files:
            if file.max_id >= vocab_size:
                array = open_array(file.path)
                row, column = np.argwhere(np.asarray(array) >= vocab_size)[0]
                raise UserError(
                    f"{file.path}: token id {array[row, column]} at [{row}, {column}] >= "
                    f"vocab_size {vocab_size}; give a larger --vocab-size, or leave it out"
                )


class ArrayRows:
    """The first `seq_len` + 1 tokens of each sequence. If seq_len = length, the last target is -1: no loss."""

    def __init__(self, files: Sequence[ArrayFile], seq_len: int):
        self.n, self.seq_len = sum(file.sequences for file in files), seq_len
        self._files = files
        self._ends = np.cumsum([file.sequences for file in files])
        self._mapped: LRUCache[int, np.ndarray] = LRUCache(mappable(len(files)))

    def read(self, numbers: np.ndarray) -> TokenBatch:
        import torch

        width = min(self.seq_len + 1, self._files[0].length)
        tokens = np.empty((len(numbers), width), np.int64)
        owners = np.searchsorted(self._ends, numbers, side="right")
        for owner in np.unique(owners).tolist():
            mine = np.flatnonzero(owners == owner)
            first = int(self._ends[owner]) - self._files[owner].sequences
            tokens[mine] = self._array(owner)[numbers[mine] - first, :width]
        inputs = torch.empty(len(numbers), self.seq_len, dtype=torch.int64)
        targets = torch.full_like(inputs, -1)
        np.copyto(inputs.numpy(), tokens[:, : self.seq_len])
        np.copyto(targets.numpy()[:, : width - 1], tokens[:, 1:])
        return inputs, targets

    def _array(self, number: int) -> np.ndarray:
        file = self._files[number]
        array = self._mapped.get(number)
        if array is None:
            array = self._mapped[number] = open_array(file.path)
        # A read behind the end of a mapped file would kill the process.
        if array.shape != (file.sequences, file.length) or file.path.stat().st_size < file.bytes:
            raise UserError(f"{file.path}: changed or truncated since the data set was opened; start again")
        return array
