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
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from danalab.data.dataset import Dataset
from danalab.data.formats.shards import Encoding, Shard, ShardEntry, TokenStore
from danalab.data.tokenizers import UNKNOWN, load_tokenizer, saved_tokenizer
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
    source: dict[str, Any] | None = None
    """The source of prepared data: name, licence, ...; None where the number of documents is unknown, too."""
    how_to_split: str = ""
    """What to do about a split that is not there, for the message."""
    if_larger: ClassVar[str] = ""
    """What may be the matter if a token id is not one of the encoding, for the message."""

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

    def open(self, split: str) -> Dataset:
        """Open one split; `UserError` when it cannot be read."""
        if split not in self.files:
            there = ", ".join(self.files)
            raise UserError(f"{self.folder}: no split '{split}'{self.how_to_split}; there are: {there}")
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
            if each.min_id < 0:
                raise UserError(f"{shard.path}: token id {each.min_id} is negative")
            if each.max_id >= encoding.n_tokens:
                what = f"token id {each.max_id} >= vocab_size {encoding.n_tokens} of {encoding.name}"
                raise UserError(f"{shard.path}: {what}{self.if_larger}")
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

    def facts(self, shards: Sequence[Shard]) -> list[ShardEntry]:
        """The facts of each file, which is read once as long as it does not change."""
        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(lambda shard: _scan(shard, os.stat(shard.path).st_mtime_ns), shards))

    def faults(self) -> Iterator[tuple[str, str]]:
        """(file, reason) of what else is wrong with the folder, for its validation."""
        return iter(())

    def remarks(self) -> list[str]:
        """What is odd and no fault: files that are not read."""
        more = " ..." if len(self.unread) > 8 else ""
        return [f"not read: {', '.join(self.unread[:8])}{more}"] if self.unread else []


def saved_encoding(folder: Path) -> Encoding | None:
    """That of the `tokenizer.json` in a folder, ids of the padding included; None where there is none."""
    if saved_tokenizer(folder) is None:
        return None
    made = load_tokenizer(folder)
    return replace(Encoding.of(made), n_tokens=made.vocab_size)


@lru_cache(maxsize=65536)
def _scan(shard: Shard, modified: int) -> ShardEntry:
    with open(shard.path, "rb") as file:
        head = file.read(shard.offset)
    if shard.length is not None:  # the same for every format of sequences
        head = f"{shard.dtype.str}|{(shard.n_tokens // shard.length, shard.length)}|".encode()
    digest = hashlib.sha256(head)
    least, largest = 0, 0
    for _, ids in shard.blocks():
        digest.update(ids.data)
        least, largest = min(least, int(ids.min())), max(largest, int(ids.max()))
    return ShardEntry(shard.path.name, shard.n_tokens, 0, 0, digest.hexdigest(), least, largest)
