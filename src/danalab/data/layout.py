"""Layouts of data sets, three kinds of folders: their files by split, and how each file is opened.

Shards      manifest.json of `danalab data prepare`         formats/prepared.py
BareFiles   train.bin and val.bin of other software         bare.py
Arrays      .npy, .pt of shape [sequences, length]          arrays.py
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from danalab.data.dataset import Dataset
from danalab.data.formats.shards import Encoding, Shard, TokenStore
from danalab.data.tokenizers import UNKNOWN
from danalab.data.tokenizers.base import padded
from danalab.errors import UserError


class Layout(ABC):
    """A data set on disk, in one of the layouts."""

    name: ClassVar[str]
    """The name that people see, e.g. "shards"."""
    folder: Path
    files: dict[str, list[Path]]
    """The files of each split, in the order in which they are read."""
    unread: Sequence[str] = ()
    """Names of files that are not read."""

    @abstractmethod
    def __init__(self, folder: Path):
        """UserError: what describes the data set cannot be read."""

    @classmethod
    @abstractmethod
    def matches(cls, folder: Path) -> bool:
        """Whether the folder looks like it: a glance at names."""

    @abstractmethod
    def open_file(self, path: Path) -> Shard:
        """One of the files; `UserError` when it is not one of token ids."""

    @abstractmethod
    def encoding(self, shard: Shard) -> Encoding | None:
        """What the ids of `shard` are; None where nothing tells."""

    def no_split(self, split: str) -> Dataset:
        """A split that is not among the files."""
        raise UserError(f"{self.folder}: no split '{split}'; there are: {', '.join(self.files)}")

    def open(self, split: str) -> Dataset:
        """Open one split; `UserError` when it cannot be read."""
        if split not in self.files:
            return self.no_split(split)
        shards = [self.open_file(path) for path in self.files[split]]
        if not shards:
            raise UserError(f"{self.folder}: the split '{split}' has no files")
        for shard in shards:
            if shard.length != shards[0].length:
                lengths = f"{shard.length} tokens, not {shards[0].length} as in {shards[0].path}"
                raise UserError(f"{shard.path}: sequences of {lengths}")
        facts, encoding = self.facts(shards), self.encoding(shards[0])
        if encoding is None:
            others = [
                self.open_file(path) for name in self.files if name != split for path in self.files[name]
            ]
            n_ids = 1 + max(each.max_id for each in (*facts, *self.facts(others)))
            encoding = Encoding(
                UNKNOWN, "arrays" if shards[0].length else UNKNOWN, n_ids, padded(n_ids), None
            )
        for shard, each in zip(shards, facts, strict=True):
            self.check_ids(shard, each, encoding)
        hashes = "\n".join([encoding.fingerprint, *(each.sha256 for each in facts)])
        return Dataset(
            name=self.folder.name,
            tokenizer_name=encoding.name,
            vocab_size=encoding.vocab_size,
            least_vocab_size=encoding.n_tokens if encoding.name == UNKNOWN else encoding.vocab_size,
            eos_id=encoding.eos_id,
            sequence_length=shards[0].length,
            path=self.folder,
            split=split,
            store=TokenStore(shards),
            fingerprint=hashlib.sha256(hashes.encode()).hexdigest(),
            max_ids=[each.max_id for each in facts],
            open_split=self.open,
        )

    def facts(self, shards: Sequence[Shard]) -> Sequence[Any]:
        """`max_id` and `sha256` of each file, which is read once as long as it does not change."""
        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(lambda shard: _scan(shard, os.stat(shard.path).st_mtime_ns), shards))

    def check_ids(self, shard: Shard, facts: Scan, encoding: Encoding) -> None:
        """Refuse ids that the encoding lacks."""
        if facts.min_id < 0:
            raise UserError(f"{shard.path}: token id {facts.min_id} is negative")
        if facts.max_id >= encoding.n_tokens:
            first = shard.first_at_least(encoding.n_tokens)
            raise UserError(f"{shard.path}: {first} >= vocab_size {encoding.n_tokens} of {encoding.name}")

    def faults(self) -> Iterator[tuple[str, str]]:
        """(file, reason) of what else is wrong with the folder, for its validation."""
        return iter(())

    def info(self) -> dict[str, Any]:
        """What is recorded: `source` (name, licence, ...) or None, and `documents` and `text_bytes` by split."""
        return {"source": None, "documents": {}, "text_bytes": {}}

    def remarks(self) -> list[str]:
        """What is odd and no fault: files that are not read."""
        more = " ..." if len(self.unread) > 8 else ""
        return [f"not read: {', '.join(self.unread[:8])}{more}"] if self.unread else []


@dataclass(frozen=True)
class Scan:
    """The facts of one file."""

    min_id: int
    max_id: int
    sha256: str


@lru_cache(maxsize=65536)
def _scan(shard: Shard, modified: int) -> Scan:
    with open(shard.path, "rb") as file:
        head = file.read(shard.offset)
    if shard.length is not None:  # the same for every format of sequences
        head = f"{shard.dtype.str}|{(shard.n_tokens // shard.length, shard.length)}|".encode()
    digest = hashlib.sha256(head)
    least, largest = 0, 0
    for _, ids in shard.blocks():
        digest.update(ids.data)
        least, largest = min(least, int(ids.min())), max(largest, int(ids.max()))
    return Scan(least, largest, digest.hexdigest())
