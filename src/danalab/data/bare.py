"""The layout "bare": token files of other software, one stream of ids each: `train.bin`, `val.bin`, `train_00.bin`, ...

    llm.c, modded-nanogpt   .bin    256 int32: magic 20240520 (ids are uint16) or 20240801 (uint32), version, tokens
    numpy                   .npy    one dimension, any integer type
    nanoGPT                 .bin    no header: the type is that in the name (`train.uint32.bin`), `dtype` in
                                    `tokens.json`, or that of a known vocabulary: uint16 up to 65,535, else uint32;
                                    `train.bin`, `val.bin` (or `train_00.bin`) are uint16. Others are refused.

The vocabulary is that of the `tokenizer.json` or nanoGPT's `meta.pkl` beside the files, else that in `tokens.json`,
else GPT-2's for ids of 16 bits. A file is read once when it is opened, for the range of its ids and its hash.

Source: llm.c dev/data/data_common.py.
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
from typing import Any, Literal

import numpy as np
from pydantic import ConfigDict

from danalab.data.dataset import Dataset, dataset_of
from danalab.data.formats.shards import MAGIC, Encoding, Shard, reading, token_dtype
from danalab.data.layout import CheckOptions, Finding, Layout, Validation, count_tokens, not_read
from danalab.data.splits import SplitName, split_name
from danalab.data.tokenizers import META, UNKNOWN, load_tokenizer, read_meta
from danalab.data.tokenizers.base import padded
from danalab.errors import UserError, first_line
from danalab.files import read_state

DECLARATION = "tokens.json"
_BLOCK = 1 << 25
_LLMC = struct.Struct("<3i")
_LLMC_BYTES = 1024
_LLMC_TYPES = {20240520: "<u2", 20240801: "<u4"}
# What nanoGPT and the FineWeb scripts of the literature write.
_GPT2 = Encoding("gpt2", "gpt2", padded(50_257), padded(50_257), 50_256)
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
class Scan:
    """The facts of one file."""

    min_id: int
    max_id: int
    sha256: str
    halves: bool
    """Whether uint16 halves of wider ids were read: every second one is 0."""


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
        files = token_files(folder)
        arrays = [path for path in files if path.suffix == ".npy"]
        flat = bool(arrays) and all(map(is_stream, arrays))
        return flat or any(is_stream(path) for path in files if path.suffix == ".bin")

    def _known_encoding(self) -> Encoding | None:
        size, eos_id = self.declared.vocab_size, self.declared.eos_id
        if (self.folder / "tokenizer.json").is_file():
            made = load_tokenizer(self.folder)  # ids of the padding are taken, too
            return Encoding(made.name, made.fingerprint, made.vocab_size, made.vocab_size, made.eos_id)
        if self.declared.tokenizer == _GPT2.name:
            return _GPT2
        if size is None and (self.folder / META).is_file():
            size, made = read_meta(self.folder / META)
            if made is not None:
                return Encoding(made.name, made.fingerprint, size, made.vocab_size, eos_id)
        return None if size is None else Encoding(UNKNOWN, f"{size} ids", size, padded(size), eos_id)

    def _open(self, path: Path) -> Shard:
        name, told = split_name(path.stem), self._told(path)
        if told is None and self.known is not None:
            told = token_dtype(self.known.vocab_size)
        elif told is None and name is not None and not name.prefix:
            told = "uint16"
        return open_tokens(path, told)

    def _told(self, path: Path) -> str | None:
        """The type of ids without a header, by `tokens.json` or the file's name."""
        name = split_name(path.stem)
        return self.declared.dtype or (name.dtype if name else None)

    def _check(self, shard: Shard, scan: Scan, encoding: Encoding | None) -> None:
        """Refuse ids that the encoding lacks, or whose type was not told and must be another."""
        if scan.halves and shard.offset == 0 and not self._told(shard.path):
            advice = _say_type(shard.path)
            raise UserError(f"{shard.path}: its ids look like uint32, read as uint16; {advice}")
        if encoding is None:
            return
        if scan.min_id < 0:
            raise UserError(f"{shard.path}: token id {scan.min_id} is negative")
        if scan.max_id >= encoding.n_tokens:
            first = shard.first_at_least(encoding.n_tokens)
            what = f"{first} >= vocab_size {encoding.n_tokens} of {encoding.name}"
            declare = f"if its ids are not {shard.dtype.name}, {_say_type(shard.path)}"
            raise UserError(f"{shard.path}: {what}; {declare}")

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
                other = f"{shards[0].path.name} is {shards[0].dtype.name}"
                raise UserError(f"{shard.path}: {shard.dtype.name}, but {other}")
        scans = scan_all(shards)
        encoding = self.known or (_GPT2 if shards[0].dtype.itemsize == 2 else None)
        if encoding is None:  # as for arrays: all ids of the folder
            others = [self._open(path) for name in self.files if name != split for path in self.files[name]]
            n_ids = 1 + max(scan.max_id for scan in (*scans, *scan_all(others)))
            encoding = Encoding(UNKNOWN, UNKNOWN, n_ids, padded(n_ids), self.declared.eos_id)
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
        return not_read(self.unread)


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
    least, largest, upper = 0, 0, 0
    with reading(shard.path) as file:
        digest = hashlib.sha256(file.read(shard.offset))
        while block := file.read(_BLOCK):
            digest.update(block)
            ids = np.frombuffer(block, shard.dtype)
            least, largest = min(least, int(ids.min())), max(largest, int(ids.max()))
            upper = max(upper, int(ids[1::2].max(initial=0)))
    halves = shard.dtype.itemsize == 2 and shard.n_tokens >= 1024 and upper == 0 < largest
    return Scan(least, largest, digest.hexdigest(), halves)


def token_files(folder: Path) -> list[Path]:
    """What may be a token file, by its suffix."""
    return sorted(
        path for path in folder.iterdir() if not path.name.startswith(".") and path.suffix in (".bin", ".npy")
    )


def find_token_files(folder: Path) -> tuple[dict[str, list[Path]], list[str]]:
    """Token files of each split, and the names of those that are not read.

    A split is `SPLIT.bin`, or `SPLIT_00.bin`, `NAME_SPLIT-00.npy` and so on in numeric order. If no name says
    "train", the files whose names say no split are "train", in the order of their names.
    """
    files = token_files(folder)
    named = {path: split_name(path.stem) for path in files if is_stream(path)}
    splits: dict[str, list[Path]] = {}
    for split in ("train", "val"):
        mine = {path: name for path, name in named.items() if name is not None and name.split == split}
        if mine:
            splits[split] = _in_order(folder, split, mine)
    unnamed = [path for path, name in named.items() if name is None]
    if "train" not in splits and unnamed:
        splits = {"train": unnamed, **splits}
    used = {path for paths in splits.values() for path in paths}
    return splits, [path.name for path in files if path not in used]


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
    """Whether a .npy is an array of one dimension, and the name of a .bin that of a file of tokens."""
    if path.suffix == ".bin":
        name = split_name(path.stem)
        return name is not None and name.split != "test"
    try:
        return path.is_file() and _npy(path).ndim == 1
    except UserError:
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
    magic, _, count = _LLMC.unpack(head[:12]) if len(head) >= 12 else (0, 0, 0)
    if path.suffix == ".npy":
        array = _npy(path)
        if array.ndim != 1 or array.dtype.kind not in "ui":
            shape = f"{array.dtype.name} of shape {list(array.shape)}"
            raise UserError(f"{path}: {shape}; it must be integers of one dimension")
        offset, dtype, count = array.offset, array.dtype, len(array)
    elif magic in _LLMC_TYPES:
        offset, dtype = _LLMC_BYTES, np.dtype(_LLMC_TYPES[magic])
    elif told is None:
        unknown = "the type of its ids is unknown, as it has no header"
        raise UserError(f"{path}: {unknown}; {_say_type(path)} (or uint16)")
    else:
        raw = np.dtype(told).newbyteorder("<")
        if size == 0 or size % raw.itemsize:
            raise UserError(
                f"{path}: {size} bytes is not a whole number of {raw} tokens: truncated, or another type"
            )
        return Shard(path, 0, raw, size // raw.itemsize)
    expected = offset + count * dtype.itemsize
    if size != expected or count <= 0:
        problem = "truncated" if size < expected else "too long" if size > expected else "empty"
        raise UserError(
            f"{path}: {problem}: {size} bytes; its header says {expected} ({count} tokens of {dtype.name})"
        )
    return Shard(path, offset, dtype, count)


def _npy(path: Path) -> np.memmap:
    """The array of a .npy, memory-mapped."""
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # numpy's parser raises almost anything
        raise UserError(
            f"{path}: not a sound .npy ({first_line(error)}); rename a file of bare ids to .bin"
        ) from error
