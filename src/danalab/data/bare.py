"""The layout "bare": token files of other software, one stream of ids each: `train.bin`, `val.bin`, `train_00.bin`, ...

    llm.c, modded-nanogpt   .bin    256 int32: magic 20240520 (ids are uint16) or 20240801 (uint32), version, tokens
    Megatron                .bin    ids; `NAME.idx` beside it: "MMIDIDX", version, type, lengths of its sequences
    numpy                   .npy    one dimension, any integer type
    nanoGPT                 .bin    no header: the type is that in the name (`train.uint32.bin`), `dtype` in
                                    `tokens.json`, or that of a known vocabulary: uint16 up to 65,535, else uint32;
                                    `train.bin`, `val.bin` (or `train_00.bin`) are uint16. Others are refused.

The vocabulary is that of the `tokenizer.json` or nanoGPT's `meta.pkl` beside the files, else that in `tokens.json`,
else GPT-2's for ids of 16 bits. A file is read once when it is opened, for the range of its ids and its hash.

Sources: llm.c dev/data/data_common.py; Megatron-LM megatron/core/datasets/indexed_dataset.py.
"""

from __future__ import annotations

import hashlib
import logging
import os
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from pydantic import ConfigDict

from danalab.data.dataset import Dataset
from danalab.data.formats.prepared import dataset_of
from danalab.data.formats.shards import MAGIC, Shard, reading, token_dtype
from danalab.data.layout import CheckOptions, Finding, Layout, Validation, count_tokens
from danalab.data.splits import SplitName, split_name
from danalab.data.tokenizers import META, UNKNOWN, AlphabetTokenizer, load_tokenizer, read_meta
from danalab.data.tokenizers.base import padded
from danalab.errors import UserError, first_line
from danalab.files import read_state

DECLARATION = "tokens.json"
_BLOCK = 1 << 25
_LLMC = struct.Struct("<3i")
_LLMC_BYTES = 1024
_LLMC_TYPES = {20240520: "<u2", 20240801: "<u4"}
_INDEX = struct.Struct("<9sQBQQ")
_INDEX_TYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Declaration:
    """The content of `tokens.json`, written by hand for files that do not say what they are."""

    dtype: Literal["uint8", "uint16", "int16", "uint32", "int32", "uint64", "int64"] | None = None
    """Type of the ids of files without a header."""
    vocab_size: int | None = None
    eos_id: int | None = None
    tokenizer: Literal["gpt2"] | None = None

    __pydantic_config__ = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class BareEncoding:
    """What the ids of a folder are."""

    name: str
    fingerprint: str
    vocab_size: int
    eos_id: int | None
    n_ids: int
    """All ids are below it."""


# What nanoGPT and the FineWeb scripts of the literature write.
_GPT2 = BareEncoding("gpt2", "gpt2", padded(50_257), 50_256, padded(50_257))


@dataclass(frozen=True)
class Scan:
    """The facts of one file."""

    min_id: int
    max_id: int
    sha256: str
    wider: bool = False
    """Whether uint16 halves of wider ids were read: every second one is 0, or far below the others."""


class BareFiles(Layout):
    """A folder of bare files: which they are, and what is known of them without reading them."""

    name = "bare"

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.files, self.unread = find_token_files(folder)
        declared = folder / DECLARATION
        self.declared = read_state(Declaration, declared) if declared.is_file() else Declaration()
        self.known = self._known_encoding()
        """None: nothing in the folder tells."""

    @classmethod
    def matches(cls, folder: Path) -> bool:
        names = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
        arrays = [path for path in names if path.suffix == ".npy"]
        ends = (
            arrays[:1] + arrays[-1:]
        )  # both, as one may be damaged: arrays of rows then report the flat one
        return any(is_stream(path) for path in names if path.suffix == ".bin") or (
            bool(ends) and all(map(is_stream, ends))
        )

    def _known_encoding(self) -> BareEncoding | None:
        size, eos_id = self.declared.vocab_size, self.declared.eos_id
        if (self.folder / "tokenizer.json").is_file():
            made = load_tokenizer(self.folder)
            return BareEncoding(made.name, made.fingerprint, made.vocab_size, made.eos_id, made.vocab_size)
        if self.declared.tokenizer == _GPT2.name:
            return _GPT2
        if size is None and (self.folder / META).is_file():
            size, alphabet = read_meta(self.folder / META)
            if alphabet is not None:
                made = AlphabetTokenizer(alphabet)
                return BareEncoding(made.name, made.fingerprint, made.vocab_size, eos_id, size)
        return None if size is None else BareEncoding(UNKNOWN, f"{size} ids", padded(size), eos_id, size)

    def _told(self, path: Path) -> str | None:
        """The type of ids without a header, by `tokens.json` or the file's name."""
        name = split_name(path.stem)
        return self.declared.dtype or (name.dtype if name else None)

    def _open(self, path: Path) -> Shard:
        name, raw = split_name(path.stem), self._told(path)
        if raw is None and self.known is not None:
            raw = token_dtype(self.known.vocab_size)
        elif raw is None and name is not None and not name.prefix:
            raw = "uint16"
        return open_tokens(path, raw)

    def _check(self, shard: Shard, scan: Scan, encoding: BareEncoding | None) -> None:
        """Refuse ids that the encoding lacks, or whose type was not told and must be another."""
        if scan.wider and not self._told(shard.path):
            raise UserError(
                f"{shard.path}: its ids look like uint32, read as uint16; {_say_type(shard.path)}"
            )
        if encoding is not None:
            _check_range(shard, scan, encoding)

    def splits(self) -> list[str]:
        return list(self.files)

    def open(self, split: str) -> Dataset:
        if split not in self.files:
            there = ", ".join(self.files)
            raise UserError(
                f"{self.folder}: no split '{split}' (no {split}.bin beside it); there are: {there}"
            )
        shards = [self._open(path) for path in self.files[split]]
        for shard in shards:
            if shard.dtype != shards[0].dtype:
                first = shards[0]
                raise UserError(
                    f"{shard.path}: {shard.dtype.name}, but {first.path.name} is {first.dtype.name}"
                )
        scans = scan_all(shards)
        encoding = self.known or (_GPT2 if shards[0].dtype.itemsize == 2 else None)
        if encoding is None:  # as for arrays: all ids of the folder
            others = [self._open(path) for name in self.files if name != split for path in self.files[name]]
            n_ids = 1 + max(scan.max_id for scan in (*scans, *scan_all(others)))
            encoding = BareEncoding(UNKNOWN, UNKNOWN, padded(n_ids), self.declared.eos_id, n_ids)
        for shard, scan in zip(shards, scans, strict=True):
            self._check(shard, scan, encoding)
        return dataset_of(self.folder, split, encoding, shards, scans, self.open)

    def check(self, result: Validation, options: CheckOptions) -> None:
        for path in (path for paths in self.files.values() for path in paths):
            try:
                shard = self._open(path)
                encoding = self.known or (_GPT2 if shard.dtype.itemsize == 2 else None)
                self._check(shard, scan_all([shard])[0], encoding)
            except UserError as error:
                result.errors.append(Finding(path.name, str(error).removeprefix(f"{path}: ")))
        count_tokens(self, result, options)

    def remarks(self) -> list[str]:
        if not self.unread:
            return []
        return [f"not read: {', '.join(self.unread[:8])}{' ...' * (len(self.unread) > 8)}"]


def _check_range(shard: Shard, scan: Scan, encoding: BareEncoding) -> None:
    if scan.min_id < 0:
        raise UserError(f"{shard.path}: token id {scan.min_id} is negative")
    if scan.max_id >= encoding.n_ids:
        first = shard.first_at_least(encoding.n_ids)
        declare = f"if its ids are not {shard.dtype.name}, {_say_type(shard.path)}"
        raise UserError(f"{shard.path}: {first} >= vocab_size {encoding.n_ids} of {encoding.name}; {declare}")


def _say_type(path: Path) -> str:
    return f'write {{"dtype": "uint32"}} to {DECLARATION} beside it, or name it {path.stem}.uint32.bin'


def scan_all(shards: Sequence[Shard]) -> list[Scan]:
    """Range and hash of each file, which is read once as long as it does not change."""
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda shard: _scan(shard, os.stat(shard.path).st_mtime_ns), shards))


@lru_cache(maxsize=4096)
def _scan(shard: Shard, modified: int) -> Scan:
    if shard.n_tokens > 1 << 28:
        _log.warning("%s: reading %s tokens for their range", shard.path, f"{shard.n_tokens:,}")
    least, largest, odd = 0, 0, 0
    with reading(shard.path) as file:
        digest = hashlib.sha256(file.read(shard.offset))
        while block := file.read(_BLOCK):
            digest.update(block)
            ids = np.frombuffer(block, shard.dtype)
            least, largest = min(least, int(ids.min())), max(largest, int(ids.max()))
            odd = max(odd, int(ids[1::2].max(initial=0)))
    headerless = (
        shard.offset == 0 and shard.dtype.itemsize == 2 and not shard.path.with_suffix(".idx").exists()
    )
    upper = odd < (1 if shard.n_tokens < 1024 else 32) and largest > 1000 * odd and shard.n_tokens >= 16
    return Scan(least, largest, digest.hexdigest(), headerless and upper)


def find_token_files(folder: Path) -> tuple[dict[str, list[Path]], list[str]]:
    """Token files of each split, and the names of those that are not read.

    A split is `SPLIT.bin`, or `SPLIT_00.bin`, `NAME_SPLIT-00.npy` and so on in numeric order. If no name says
    "train", the files whose names say no split are "train", in the order of their names.
    """
    names = sorted(
        path for path in folder.iterdir() if not path.name.startswith(".") and path.suffix in (".bin", ".npy")
    )
    named = {path: split_name(path.stem) for path in names if is_stream(path)}
    splits: dict[str, list[Path]] = {}
    for split in ("train", "val"):
        mine = {path: name for path, name in named.items() if name is not None and name.split == split}
        if mine:
            splits[split] = _in_order(folder, split, mine)
    unnamed = [path for path, name in named.items() if name is None]
    if "train" not in splits and unnamed:
        splits = {"train": unnamed, **splits}
    used = {path for paths in splits.values() for path in paths}
    return splits, [path.name for path in names if path not in used]


def _in_order(folder: Path, split: str, named: dict[Path, SplitName]) -> list[Path]:
    """The shards of a split, whose names differ in their numbers alone, in the order of these."""
    families = {(name.base, path.suffix): path.name for path, name in named.items()}
    if len(families) > 1:
        beside = " and ".join(list(families.values())[:2])
        raise UserError(f"{folder}: {beside}: both can be the split '{split}'; move one away")
    numbered = {name.number: path for path, name in named.items()}
    if len(numbered) < len(named):
        raise UserError(f"{folder}: two files of the split '{split}' have one number")
    first, last = min(numbered), max(numbered)
    if first > 1 or last - first >= len(numbered):
        raise UserError(
            f"{folder}: '{split}' lacks shards: {len(numbered)} files up to {numbered[last].name}; their numbers must "
            "run from 0 or 1 without a gap"
        )
    return [numbered[number] for number in sorted(numbered)]


def is_stream(path: Path) -> bool:
    """Whether a .npy is an array of one dimension, and a .bin has a name or an index that makes it a file of tokens."""
    if path.suffix == ".bin":
        name = split_name(path.stem)
        return (name is not None and name.split != "test") or path.with_suffix(".idx").exists()
    if path.suffix != ".npy" or not path.is_file():
        return False
    try:
        with open(path, "rb") as file:
            return len(_npy_header(path, file)[0]) == 1
    except (UserError, OSError):
        return False


def open_tokens(path: Path, told: Any) -> Shard:
    """The ids of a file, not read; `told`: their type where the file does not say it itself.

    UserError: a file of another kind or of an unknown type, or one that is longer or shorter than its header says.
    """
    with reading(path) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(16)
        if head.startswith(MAGIC):
            raise UserError(
                f"{path}: a shard of danalab without its manifest.json (preparation unfinished?): "
                "run danalab data prepare again with the same flags"
            )
        if path.suffix == ".npy":
            file.seek(0)
            shape, dtype = _npy_header(path, file)
            if len(shape) != 1 or dtype.kind not in "ui":
                raise UserError(
                    f"{path}: {dtype.name} of shape {list(shape)}; it must be integers of one dimension"
                )
            return _of_size(path, file.tell(), dtype, shape[0], size)
    index = path.with_suffix(".idx")
    if index.exists():
        return _read_index(path, index, size)
    magic, _, count = _LLMC.unpack(head[:12]) if len(head) >= 12 else (0, 0, 0)
    if magic in _LLMC_TYPES:
        return _of_size(path, _LLMC_BYTES, np.dtype(_LLMC_TYPES[magic]), count, size)
    if told is None:
        raise UserError(
            f"{path}: the type of its ids is unknown, as it has no header; {_say_type(path)} (or uint16)"
        )
    raw = np.dtype(told).newbyteorder("<")
    if size == 0 or size % raw.itemsize:
        raise UserError(
            f"{path}: {size} bytes is not a whole number of {raw} tokens: truncated, or another type"
        )
    return Shard(path, 0, raw, size // raw.itemsize)


def _of_size(path: Path, offset: int, dtype: np.dtype, count: int, size: int) -> Shard:
    expected = offset + count * dtype.itemsize
    if size != expected or count <= 0:
        problem = "truncated" if size < expected else "too long" if size > expected else "empty"
        raise UserError(
            f"{path}: {problem}: {size} bytes; its header says {expected} ({count} tokens of {dtype.name})"
        )
    return Shard(path, offset, dtype, count)


def _npy_header(path: Path, file: BinaryIO) -> tuple[Sequence[int], np.dtype]:
    """(shape, type); `file` is left at the first id."""
    try:
        version = np.lib.format.read_magic(file)
        read = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = read(file)
    except Exception as error:  # numpy's parser raises almost anything
        raise UserError(
            f"{path}: no .npy header ({first_line(error)}); rename a file of bare ids to .bin"
        ) from error
    return shape, dtype


def _read_index(path: Path, index: Path, size: int) -> Shard:
    """The ids of Megatron's `path`, all of its sequences, one after another."""
    with reading(index) as file:
        head = file.read(_INDEX.size)
        if len(head) < _INDEX.size or not head.startswith(b"MMIDIDX\0\0"):
            raise UserError(f"{index}: not an index of Megatron (MMIDIDX), which must describe {path.name}")
        _, version, code, sequences, _ = _INDEX.unpack(head)
        if version != 1 or code not in _INDEX_TYPES:
            raise UserError(
                f"{index}: version {version}, type {code}; version 1 with a type of integers is read"
            )
        if sequences * 12 > os.fstat(file.fileno()).st_size:
            raise UserError(f"{index}: truncated: {sequences} sequences")
        lengths = np.fromfile(file, "<i4", sequences).astype(np.int64)
        pointers = np.fromfile(file, "<i8", sequences)
    dtype = np.dtype(_INDEX_TYPES[code])
    ends = np.cumsum(lengths) * dtype.itemsize
    if not np.array_equal(pointers, ends - lengths * dtype.itemsize):
        raise UserError(f"{index}: its sequences do not follow one another; write the data set again")
    return _of_size(path, 0, dtype, int(lengths.sum()), size)
