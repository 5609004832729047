"""What a file of tokens is, from its name, its header, or the file beside it; one stream of ids each.

    llm.c, modded-nanogpt   .bin    256 int32: magic 20240520 (ids are uint16) or 20240801 (uint32), version, tokens
    Megatron                .bin    ids; `NAME.idx` beside it: "MMIDIDX", version, type, lengths of its sequences
    numpy                   .npy    one dimension, any integer type
    nanoGPT                 .bin    no header: the type must be known from elsewhere

Sources: llm.c dev/data/data_common.py; Megatron-LM megatron/core/datasets/indexed_dataset.py.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from danalab.data.formats.shards import MAGIC, Shard, reading
from danalab.errors import UserError, first_line

SPLIT_NAMES = {"train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "dev": "val",
               "test": "test", "testing": "test"}  # fmt: skip
"""Words in names of files and folders -> the split; "test" is read by no run."""
_STEM = re.compile(
    rf"(?:(.+)[._-])?({'|'.join(SPLIT_NAMES)})(?:_text)?(?:_document|_sentence)?(?:[._-](\d+)(?:-of-\d+)?)?"
)
_LLMC = struct.Struct("<3i")
_LLMC_BYTES = 1024
_LLMC_TYPES = {20240520: "<u2", 20240801: "<u4"}
_LLMC_VERSIONS = (1, 7)
_LLMC_OTHERS = range(20240300, 20250000)
_INDEX = struct.Struct("<9sQBQQ")
_INDEX_TYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_FOREIGN = {b"PK\x03\x04": "a zip archive", b"PAR1": "a parquet file", b"ARROW1": "an arrow file",
            b"\x89HDF": "an HDF5 file", b"\x80\x04\x95": "a pickle"}  # fmt: skip


class SplitName(NamedTuple):
    """The parts of a file's name that say to which split it belongs: PREFIX_SPLIT_NUMBER."""

    prefix: str
    split: str
    """train, val or test."""
    base: str
    """The name without the number."""
    number: str | None


def split_name(stem: str) -> SplitName | None:
    """The parts of a name without its suffix, e.g. `fineweb_train_000001`; None: it names no split."""
    match = _STEM.fullmatch(stem)
    if match is None:
        return None
    base = stem if match[3] is None else stem[: match.start(3)].rstrip("._-")
    return SplitName(match[1] or "", SPLIT_NAMES[match[2]], base, match[3])


def is_stream(path: Path) -> bool:
    """Whether a .npy is an array of one dimension, and a .bin has a name or an index that makes it a file of tokens."""
    if path.suffix == ".bin":
        name = split_name(path.stem)
        return (name is not None and name.split != "test") or os.path.lexists(path.with_suffix(".idx"))
    if path.suffix != ".npy" or not path.is_file():
        return False
    try:
        with open(path, "rb") as file:
            return len(_npy_header(path, file)[0]) == 1
    except (UserError, OSError):
        return False


def open_tokens(path: Path, raw: np.dtype) -> tuple[Shard, bool]:
    """The ids of a file, not read, and whether it says their type itself; `raw`: their type where it does not.

    UserError: a file of another kind, or one that is longer or shorter than its header says.
    """
    with reading(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            raise UserError(f"{path}: empty")
        head = file.read(16)
        if head.startswith(MAGIC):
            raise UserError(
                f"{path}: a shard of danalab without its manifest.json (preparation unfinished?): "
                "run danalab data prepare again with the same flags"
            )
        if path.suffix == ".npy" or head.startswith(b"\x93NUMPY"):
            file.seek(0)
            shape, dtype = _npy_header(path, file)
            if len(shape) != 1 or dtype.kind not in "ui":
                raise UserError(f"{path}: {dtype.name} of shape {list(shape)}; it must be integers of one dimension")
            return _of_size(path, file.tell(), dtype, shape[0], size), True
    index = path.with_suffix(".idx")
    if os.path.lexists(index):
        return _read_index(path, index, size), True
    magic, version, count = _LLMC.unpack(head[:12]) if len(head) >= 12 else (0, 0, 0)
    if magic in _LLMC_TYPES:
        if version not in _LLMC_VERSIONS or count < 0:
            what = f"version {version}, {count} tokens"
            raise UserError(f"{path}: llm.c's format {magic} of {what}; it must be version 1 or 7")
        return _of_size(path, _LLMC_BYTES, np.dtype(_LLMC_TYPES[magic]), count, size), True
    kinds = [kind for begin, kind in _FOREIGN.items() if head.startswith(begin)]
    if magic in _LLMC_OTHERS:
        kinds.append(f"another file of llm.c (magic {magic})")
    if head[8:10] == b'{"':
        kinds.append("a safetensors file")
    if kinds:
        raise UserError(f"{path}: {kinds[0]}; it must be token ids")
    if size % raw.itemsize:
        raise UserError(f"{path}: {size} bytes is not a whole number of {raw} tokens: truncated, or another type")
    return Shard(path, 0, raw, size // raw.itemsize), False


def _of_size(path: Path, offset: int, dtype: np.dtype, count: int, size: int) -> Shard:
    expected = offset + count * dtype.itemsize
    if size != expected:
        problem = "truncated" if size < expected else "too long"
        raise UserError(f"{path}: {problem}: {size} bytes; its header says {expected} ({count} tokens of {dtype.name})")
    if count == 0:
        raise UserError(f"{path}: no tokens in it")
    return Shard(path, offset, dtype, count)


def _npy_header(path: Path, file: BinaryIO) -> tuple[Sequence[int], np.dtype]:
    """(shape, type); `file` is left at the first id."""
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    except Exception as error:  # numpy's parser raises almost anything
        raise UserError(f"{path}: no .npy header ({first_line(error)}); rename a file of bare ids to .bin") from error
    return shape, dtype


def _read_index(path: Path, index: Path, size: int) -> Shard:
    """The ids of Megatron's `path`, all of its sequences, one after another."""
    with reading(index) as file:
        length = os.fstat(file.fileno()).st_size
        head = file.read(_INDEX.size)
        if len(head) < _INDEX.size or not head.startswith(b"MMIDIDX\0\0"):
            raise UserError(f"{index}: not an index of Megatron (MMIDIDX), which must describe {path.name}")
        _, version, code, sequences, documents = _INDEX.unpack(head)
        if version != 1 or code not in _INDEX_TYPES:
            raise UserError(f"{index}: version {version}, type {code}; version 1 with a type of integers is read")
        expected = _INDEX.size + 12 * sequences + 8 * documents
        if length not in (expected, expected + sequences):  # a byte for the mode of each sequence, if there are modes
            raise UserError(f"{index}: {length} bytes; {sequences} sequences and {documents} documents are {expected}")
        lengths = np.fromfile(file, "<i4", sequences).astype(np.int64)
        pointers = np.fromfile(file, "<i8", sequences)
    dtype = np.dtype(_INDEX_TYPES[code])
    ends = np.cumsum(lengths) * dtype.itemsize
    if sequences and (lengths.min() < 0 or not np.array_equal(pointers, ends - lengths * dtype.itemsize)):
        raise UserError(f"{index}: its sequences do not follow one another; write the data set again")
    return _of_size(path, 0, dtype, int(lengths.sum()), size)
