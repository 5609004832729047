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

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import ConfigDict

from danalab.data.formats.shards import MAGIC, Encoding, Shard, reading, token_dtype
from danalab.data.layout import Layout, Scan, open_npy
from danalab.data.splits import SplitName, split_name
from danalab.data.tokenizers import META, UNKNOWN, load_tokenizer, read_meta
from danalab.data.tokenizers.base import padded
from danalab.errors import UserError
from danalab.files import read_state

DECLARATION = "tokens.json"
_LLMC = struct.Struct("<3i")
_LLMC_BYTES = 1024
_LLMC_TYPES = {20240520: "<u2", 20240801: "<u4"}
# What nanoGPT and the FineWeb scripts of the literature write.
_GPT2 = Encoding("gpt2", "gpt2", padded(50_257), padded(50_257), 50_256)


@dataclass(frozen=True)
class Declaration:
    """The content of `tokens.json`, written by hand for files that do not say what they are."""

    dtype: Literal["uint8", "uint16", "int16", "uint32", "int32", "uint64", "int64"] | None = None
    """Type of the ids of files without a header."""
    vocab_size: int | None = None
    eos_id: int | None = None
    tokenizer: Literal["gpt2"] | None = None

    __pydantic_config__ = ConfigDict(extra="forbid")


class BareFiles(Layout):
    """A folder of bare files: which they are, and what is known of them without reading them."""

    name = "bare"

    def __init__(self, folder: Path):
        self.folder = folder
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

    def encoding(self, shard: Shard) -> Encoding | None:
        return self.known or (_GPT2 if shard.dtype.itemsize == 2 else None)

    def open_file(self, path: Path) -> Shard:
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

    def check_ids(self, shard: Shard, facts: Scan, encoding: Encoding) -> None:
        """Refuse ids that the encoding lacks, or whose type was not told and must be another."""
        if facts.halves and shard.offset == 0 and not self._told(shard.path):
            advice = _say_type(shard.path)
            raise UserError(f"{shard.path}: its ids look like uint32, read as uint16; {advice}")
        try:
            super().check_ids(shard, facts, encoding)
        except UserError as error:
            declare = f"if its ids are not {shard.dtype.name}, {_say_type(shard.path)}"
            raise UserError(f"{error}; {declare}") from None

    def faults(self) -> Iterator[tuple[str, str]]:
        for path in (path for paths in self.files.values() for path in paths):
            try:
                shard = self.open_file(path)
                if (encoding := self.encoding(shard)) is not None:
                    self.check_ids(shard, self.facts([shard])[0], encoding)
            except UserError as error:
                yield path.name, str(error).removeprefix(f"{path}: ")


def _say_type(path: Path) -> str:
    return f'write {{"dtype": "uint32"}} to {DECLARATION} beside it, or name it {path.stem}.uint32.bin'


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
    paths = sorted(named, key=lambda path: named[path].number)
    numbers = [named[path].number for path in paths]
    families = {(name.base, path.suffix) for path, name in named.items()}
    if len(families) > 1 or numbers[0] > 1 or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        there = f"{len(paths)} files from {paths[0].name} to {paths[-1].name}"
        rule = "one name, with numbers from 0 or 1 without a gap; move others away"
        raise UserError(f"{folder}: the split '{split}' has {there}; it must have {rule}")
    return paths


def is_stream(path: Path) -> bool:
    """Whether a .npy is an array of one dimension, and the name of a .bin that of a file of tokens."""
    if path.suffix == ".bin":
        name = split_name(path.stem)
        return name is not None and name.split != "test"
    try:
        return path.is_file() and np.lib.format.open_memmap(path, mode="r").ndim == 1
    except Exception:  # numpy's parser raises almost anything
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
        shard, _ = open_npy(path)
        offset, dtype, count = shard.offset, shard.dtype, shard.n_tokens
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
