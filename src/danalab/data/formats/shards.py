"""Token shards, several of them as one token stream, and the manifest that lists them.

A shard is a 64-byte header, then token ids, little-endian uint16 or uint32:

bytes   0-7   magic "danalab\\0"
        8-11  version (1)
       12-15  bytes per token (2 or 4)
       16-23  number of tokens
       24-55  SHA-256 of the tokenizer (its fingerprint)
       56-63  zeros

`manifest.json` is written last, so a folder that has one is complete.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np

from danalab.data.tokenizers import Tokenizer
from danalab.errors import UserError
from danalab.files import read_json, sha256, validated, write_json

MAGIC = b"danalab\0"
VERSION = 1
HEADER = struct.Struct("<8sIIQ32s8x")
MAX_VOCAB = 1 << 28
_BLOCK_TOKENS = 1 << 20  # small enough to stay in cache between the passes over it


def token_dtype(vocab_size: int) -> np.dtype:
    """Little-endian uint16, or uint32 when the vocabulary exceeds 65,535."""
    return np.dtype("<u2" if vocab_size <= 65_535 else "<u4")


class TokenStore:
    """The concatenated tokens of `shards`. Nothing stays open: any number of files may be one store, and a file that is
    truncated while a job reads it ends in one line (a memory map would kill the process)."""

    def __init__(self, shards: Sequence[Shard]):
        self.shards = list(shards)
        self._ends = np.cumsum([shard.n_tokens for shard in self.shards], dtype=np.int64)
        self.n_tokens = int(self._ends[-1]) if self.shards else 0
        types = {shard.dtype for shard in self.shards}
        self._dtype = types.pop() if len(types) == 1 else np.dtype(np.int64)

    def rows(self, starts: np.ndarray, length: int) -> np.ndarray:
        """tokens[start : start + length] for each start, [len(starts), length]."""
        first = np.searchsorted(self._ends, starts, side="right")
        inside = first == np.searchsorted(self._ends, starts + (length - 1), side="right")
        rows = np.empty((len(starts), length), self._dtype)
        for number in np.unique(first[inside]).tolist():
            chosen = inside & (first == number)
            shard = self.shards[number]
            rows[chosen] = shard.read(starts[chosen] - (self._ends[number] - shard.n_tokens), length)
        for row in np.flatnonzero(~inside).tolist():
            rows[row] = self.read(int(starts[row]), length)
        return rows

    def read(self, start: int, length: int) -> np.ndarray:
        """tokens[start : start + length], across shards; shorter at the end of the stream."""
        pieces = []
        stop = min(start + length, self.n_tokens)
        while start < stop:
            number = int(np.searchsorted(self._ends, start, side="right"))
            shard, end = self.shards[number], int(self._ends[number])
            pieces.append(shard.read([start - end + shard.n_tokens], min(stop, end) - start)[0])
            start += len(pieces[-1])
        return np.concatenate(pieces) if pieces else np.empty(0, self._dtype)


@dataclass(frozen=True)
class Shard:
    """A run of tokens in a file: offset of the first byte, type and number of the tokens."""

    path: Path
    offset: int
    dtype: np.dtype
    n_tokens: int
    length: int | None = None
    """Tokens of each sequence, in a file of sequences; None for a stream."""

    @property
    def row(self) -> int:
        """Tokens that are not divided: those of a sequence, or one of a stream."""
        return self.length or 1

    def read(self, starts: Sequence[int] | np.ndarray, length: int) -> np.ndarray:
        """tokens[start : start + length] for each start, [len(starts), length]."""
        rows = np.empty((len(starts), length), self.dtype)
        with reading(self.path) as file:
            for row, start in zip(rows.view(np.uint8), starts, strict=True):
                file.seek(self.offset + int(start) * self.dtype.itemsize)
                if file.readinto(row.data) < len(row):
                    raise UserError(f"{self.path}: truncated since the data set was opened; start again")
        return rows

    def sample(self) -> str:
        """SHA-256 [hex] of 16 evenly spaced blocks, the first and the last among them: all of up to 131,072 tokens."""
        length = min(self.n_tokens, 8192)
        starts = np.linspace(0, self.n_tokens - length, 16).astype(np.int64)
        return hashlib.sha256(self.read(starts, length).data).hexdigest()

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """All tokens, some MiB at a time: (number of the first token, tokens), whole sequences where there are any."""
        size = max(1, _BLOCK_TOKENS // self.row) * self.row
        for start in range(0, self.n_tokens, size):
            yield start, self.read([start], min(size, self.n_tokens - start))[0]


@contextmanager
def reading(path: Path) -> Iterator[BufferedReader]:
    """A regular file opened for reading; `UserError` if it is absent or cannot be read, also after it was opened."""
    try:
        if path.exists() and not path.is_file():  # a named pipe would block
            raise UserError(f"{path}: not a regular file")
        with open(path, "rb") as file:
            yield file
    except FileNotFoundError:
        if path.is_symlink():
            raise UserError(f"{path}: a dangling symbolic link (to {os.readlink(path)})") from None
        raise UserError(f"{path}: missing; prepare the data set again") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error


@dataclass(frozen=True)
class ShardEntry:
    """The facts of a file of ids, as in the manifest."""

    file: str
    tokens: int
    documents: int
    text_bytes: int
    """UTF-8 bytes of the documents' text."""
    sha256: str
    """SHA-256 [hex] of the whole file."""
    min_id: int
    max_id: int


MANIFEST = "manifest.json"
CHANGED = f"content differs from {MANIFEST}'s sha256"
_FORMAT = "danalab-shards"
_VERSION = 1


@dataclass(frozen=True)
class Encoding:
    """What the ids of a data set are; in a manifest, of the tokenizer that is saved beside it."""

    name: str
    fingerprint: str
    n_tokens: int
    """All ids are below it."""
    vocab_size: int
    eos_id: int | None

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Encoding:
        return cls(
            tokenizer.name,
            tokenizer.fingerprint,
            tokenizer.n_tokens,
            tokenizer.vocab_size,
            tokenizer.eos_id,
        )


@dataclass(frozen=True)
class Manifest:
    """The content of `manifest.json`: the parts of a prepared data set."""

    tokenizer: Encoding
    source: dict[str, Any]
    """Name, licence, and the settings that selected its documents."""
    splits: dict[str, list[ShardEntry]]
    request: str
    """SHA-256 [hex] of every setting that affects the content: preparing the same again does nothing."""
    danalab: str
    """Version that wrote it."""
    files: dict[str, str] = field(default_factory=dict)
    """Other files of the data set (its tokenizer's), with their SHA-256 [hex]."""
    format: str = _FORMAT
    version: int = _VERSION

    def write(self, folder: Path) -> None:
        """Write into the folder."""
        write_json(folder / MANIFEST, asdict(self))

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read from the folder; `UserError` if it is absent, malformed, or of another version."""
        file = folder / MANIFEST
        content = read_json(file)
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise UserError(f"{file}: not the manifest of a data set (format is not {_FORMAT})")
        if content.get("version") != _VERSION:
            raise UserError(
                f"{file}: version {content.get('version')}, this danalab reads version {_VERSION}"
            )
        manifest = validated(cls, content, file)
        if not manifest.splits:
            raise UserError(f"{file}: malformed: no splits")
        return manifest

    def open_shard(self, folder: Path, entry: ShardEntry) -> Shard:
        """One shard, whose header and size must be those that this manifest says.

        It is read through only if it is newer than the manifest, which was written last: then somebody changed it.
        """
        path, dtype = folder / entry.file, token_dtype(self.tokenizer.vocab_size)
        with reading(path) as file:
            size, head = os.fstat(file.fileno()).st_size, file.read(HEADER.size)
        *facts, digest = HEADER.unpack(head.ljust(HEADER.size, b"\0"))
        expected = [MAGIC, VERSION, dtype.itemsize, entry.tokens, self.tokenizer.fingerprint]
        if [*facts, digest.hex()] != expected:
            reason = f"its header is not that of a shard of these tokens and this tokenizer in {MANIFEST}"
            raise UserError(f"{path}: {reason}; prepare the data set again")
        if size != HEADER.size + entry.tokens * dtype.itemsize:
            reason = f"truncated or too long: {size} bytes for {entry.tokens} tokens"
            raise UserError(f"{path}: {reason}; prepare the data set again")
        if path.stat().st_mtime > (folder / MANIFEST).stat().st_mtime and sha256(path) != entry.sha256:
            raise UserError(f"{path}: changed since it was prepared: {CHANGED}; prepare it again")
        return Shard(path, HEADER.size, dtype, entry.tokens)
