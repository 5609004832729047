"""One shard: a 64-byte header, then token ids, little-endian uint16 or uint32.

bytes   0-7   magic "danalab\\0"
        8-11  version (1)
       12-15  bytes a token (2 or 4)
       16-23  number of tokens
       24-55  SHA-256 of the tokenizer (its fingerprint)
       56-63  zeros
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from danalab.errors import UserError
from danalab.files import fsync_folder, sha256

MAGIC = b"danalab\0"
VERSION = 1
HEADER = struct.Struct("<8sIIQ32s8x")


def token_dtype(vocab_size: int) -> np.dtype:
    """Little-endian uint16, or uint32 when the vocabulary exceeds 65,535."""
    return np.dtype("<u2" if vocab_size <= 65_535 else "<u4")


@contextmanager
def reading(path: Path) -> Iterator[BinaryIO]:
    """A file opened for reading.

    Raises:
        UserError: it is missing, a link to nowhere, or cannot be read; also while it is being read.
    """
    try:
        with open(path, "rb") as file:
            yield file
    except FileNotFoundError:
        if path.is_symlink():
            raise UserError(f"{path}: a symbolic link to nowhere ({os.readlink(path)})") from None
        raise UserError(f"{path}: missing; prepare the data set again") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error


@dataclass(frozen=True)
class Shard:
    """Where a run of tokens lies: a file, the first byte, the type and the number of its tokens."""

    path: Path
    offset: int
    dtype: np.dtype
    n_tokens: int

    def tokens(self, *, scattered: bool = False) -> np.ndarray:
        """The ids, memory-mapped, read-only, [n_tokens]; `scattered`: they will be read here and there."""
        if self.n_tokens == 0:
            return np.empty(0, self.dtype)
        with reading(self.path) as file:
            size = os.fstat(file.fileno()).st_size
            if size < self.offset + self.n_tokens * self.dtype.itemsize:
                raise UserError(f"{self.path}: {size} bytes: it became shorter since the data set was opened")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if scattered and hasattr(mmap, "MADV_RANDOM"):
            mapped.madvise(mmap.MADV_RANDOM)
        return np.frombuffer(mapped, self.dtype, self.n_tokens, self.offset)


@dataclass(frozen=True)
class ShardEntry:
    """What the manifest says of a shard."""

    file: str
    tokens: int
    documents: int
    text_bytes: int
    """UTF-8 bytes of the documents' text."""
    sha256: str
    """Of the whole file."""
    min_id: int
    max_id: int


def read_header(path: Path) -> tuple[Shard, str]:
    """A shard by its header, and the fingerprint of its tokenizer.

    Raises:
        UserError: not a shard, another version, or a size that the header does not promise.
    """
    with reading(path) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(HEADER.size)
    if len(head) < HEADER.size or head[:8] != MAGIC:
        raise UserError(f"{path}: not a shard of danalab (no header)")
    _, version, width, count, fingerprint = HEADER.unpack(head)
    if version != VERSION or width not in (2, 4):
        raise UserError(f"{path}: shard version {version}, {width} bytes a token; this danalab reads version {VERSION}")
    expected = HEADER.size + count * width
    if size != expected:
        what = "truncated" if size < expected else "too long"
        raise UserError(f"{path}: {what}: {size} bytes, its header promises {expected}; prepare the data set again")
    return Shard(path, HEADER.size, np.dtype(f"<u{width}"), count), fingerprint.hex()


class ShardWriter:
    """Appends documents' ids to `NAME.bin.part`; `finish` writes the header, makes it durable and renames it.

    All that a resumed preparation needs to know is how many tokens were flushed: what lies beyond is cut off.
    """

    def __init__(self, path: Path, dtype: np.dtype, fingerprint: str, flushed_tokens: int = 0):
        """Begin, or go on after `flushed_tokens` tokens of an interrupted shard.

        Raises:
            UserError: the interrupted shard has fewer tokens than were flushed.
        """
        self.path = path
        self.tokens = flushed_tokens
        self._dtype = dtype
        self._fingerprint = bytes.fromhex(fingerprint)
        self._part = path.with_name(path.name + ".part")
        if flushed_tokens and path.exists() and not self._part.exists():
            os.replace(path, self._part)  # killed between `finish` and the journal
        self._file = open(self._part, "r+b" if flushed_tokens else "w+b")  # noqa: SIM115  closed by `finish`
        end = HEADER.size + flushed_tokens * dtype.itemsize
        if self._part.stat().st_size < end and flushed_tokens:
            self._file.close()
            raise UserError(f"{self._part}: shorter than the journal says; delete the folder and prepare it again")
        self._file.truncate(end)
        self._file.seek(end)

    def append(self, ids: np.ndarray) -> None:
        """Add token ids."""
        self._file.write(np.ascontiguousarray(ids, self._dtype).data)
        self.tokens += len(ids)

    def flush(self) -> None:
        """Make what was appended durable."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Leave the part where it is."""
        self._file.close()

    def finish(self, documents: int, text_bytes: int) -> ShardEntry:
        """Complete the shard; returns its entry in the manifest."""
        self._file.seek(0)
        self._file.write(HEADER.pack(MAGIC, VERSION, self._dtype.itemsize, self.tokens, self._fingerprint))
        self.flush()
        self._file.close()
        ids = Shard(self._part, HEADER.size, self._dtype, self.tokens).tokens()
        entry = ShardEntry(
            file=self.path.name,
            tokens=self.tokens,
            documents=documents,
            text_bytes=text_bytes,
            sha256=sha256(self._part),
            min_id=int(ids.min()),
            max_id=int(ids.max()),
        )
        os.replace(self._part, self.path)
        fsync_folder(self.path.parent)
        return entry
