"""Arrays as a data set: each row of the files is one training sequence x, inputs x[:-1], targets x[1:]."""

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from cachetools import LRUCache

from danalab.data.dataset import Dataset, fingerprint_of
from danalab.data.formats.arrays.files import open_array
from danalab.data.formats.arrays.scan import ArrayScan
from danalab.data.formats.store import TokenStore
from danalab.data.order.windows import Batch, Sequences, require_length
from danalab.data.tokenizers import Tokenizer, load_tokenizer
from danalab.data.tokenizers.base import padded
from danalab.errors import UserError

CACHE_BYTES = 4 << 30
"""Default budget for arrays that are read whole (.npz, .pt)."""
_MAPPINGS = 256  # a mapped file holds a file descriptor, and a process has about a thousand
_log = logging.getLogger(__name__)


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


class ArrayFiles:
    """Numbered sequences of all parts; files are mapped or read on demand."""

    def __init__(self, parts: Sequence[ArrayPart], cache_bytes: int = CACHE_BYTES):
        self.parts = list(parts)
        self.ends = np.cumsum([part.n for part in self.parts])
        self.n = int(self.ends[-1])
        self.length = self.parts[0].scan.length
        self.loaded = _byte_cache(cache_bytes)
        self._mapped: LRUCache[int, np.ndarray] = LRUCache(_MAPPINGS)
        self._lock = threading.Lock()

    def set_budget(self, budget: int) -> None:
        """Replace the cache by one of `budget` bytes; warns if the files that need it do not fit."""
        self.loaded = _byte_cache(budget)
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


def _byte_cache(budget: int) -> LRUCache[int, np.ndarray]:
    """Arrays by number within `budget` bytes; the least recently used one goes first."""
    return LRUCache(budget, lambda array: array.nbytes)


class ArrayRows:
    """The first `seq_len` + 1 tokens of each sequence. If seq_len = length, the last target is -1: no loss."""

    def __init__(self, files: ArrayFiles, seq_len: int, name: str):
        if require_length(seq_len) > files.length:
            raise UserError(
                f"{name}: its sequences have {files.length} tokens, seq_len is {seq_len}; "
                f"give --seq-len {files.length - 1} or less"
            )
        self.n, self.seq_len = files.n, seq_len
        self._files = files
        self._width = min(seq_len + 1, files.length)

    def read(self, numbers: np.ndarray) -> Batch:
        tokens = np.empty((len(numbers), self._width), np.int64)
        self._files.read_into(numbers, self._width, tokens)
        inputs = torch.empty(len(numbers), self.seq_len, dtype=torch.int64)
        targets = torch.empty_like(inputs)
        np.copyto(inputs.numpy(), tokens[:, : self.seq_len])
        np.copyto(targets.numpy()[:, : self._width - 1], tokens[:, 1:])
        targets[:, self._width - 1 :] = -1
        return inputs, targets


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
        self.sequence_length = self.files.length
        self._least = vocab_size
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
            tokenizer_name=tokenizer.name if tokenizer else "an unknown tokenizer",
            open_split=open_split,
        )
        self.n_tokens = self.files.n * self.sequence_length

    @property
    def least_vocab_size(self) -> int:
        """The largest id + 1."""
        return self._least

    @property
    def n_files(self) -> int:
        """Number of array files."""
        return len(self.files.parts)

    @property
    def tokenizer(self) -> Tokenizer:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The tokenizer of the ids.

        Raises:
            UserError: no `tokenizer.json` beside the arrays.
        """
        if not (self.path / "tokenizer.json").is_file():
            raise UserError(f"{self.path}: no tokenizer.json beside the arrays")
        return load_tokenizer(self.path)

    def set_cache(self, budget: int) -> None:
        self.files.set_budget(budget)

    def rows(self, seq_len: int) -> ArrayRows:
        """The split as numbered sequences of `seq_len` tokens; longer ones are truncated."""
        return ArrayRows(self.files, seq_len, f"{self.path} ({self.split})")

    def packed(self, seq_len: int, key: bytes, name: str) -> Sequences:
        """Not possible: arrays hold sequences already.

        Raises:
            UserError: always.
        """
        raise UserError(f"{name}: arrays are sequences already; leave --packing documents out")

    def check_vocab(self, vocab_size: int) -> None:
        """See `Dataset.check_vocab`.

        Raises:
            UserError: names the file and position of a larger id.
        """
        for number, part in enumerate(self.files.parts):
            if part.scan.max_id >= vocab_size:
                array = self.files.array(number)
                for row, ids in enumerate(array):
                    over = np.flatnonzero(ids >= vocab_size)
                    if len(over):
                        raise UserError(
                            f"{part.path}: token id {ids[over[0]]} at [{row}, {over[0]}] >= vocab_size {vocab_size}; "
                            "give a larger --vocab-size, or leave it out"
                        )
