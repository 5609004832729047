"""The layout "bare": token files of other software, a stream of ids each: `train.bin`, `val.bin`, `train_00.bin`, ...

They have no header. The type of the ids is `dtype` in `tokens.json`, else that in the name (`train.uint32.bin`), else
that of a known vocabulary (uint16 up to 65,535 ids, else uint32), else nanoGPT's uint16.

The vocabulary is that of the `tokenizer.json` beside the files, else that in `tokens.json`, else GPT-2's for ids of 16
bits. A file is read once when it is opened, for the range of its ids and its hash.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import ConfigDict

from danalab.data.formats.shards import MAGIC, Encoding, Shard, reading, token_dtype
from danalab.data.layout import Layout, saved_encoding
from danalab.data.splits import SplitName, split_name
from danalab.data.tokenizers import UNKNOWN
from danalab.data.tokenizers.base import padded
from danalab.errors import UserError
from danalab.files import read_state

DECLARATION = "tokens.json"
# What nanoGPT and the FineWeb scripts of the literature write.
_GPT2 = Encoding("gpt2", "gpt2", padded(50_257), padded(50_257), 50_256)


@dataclass(frozen=True)
class Declaration:
    """The content of `tokens.json`, written by hand for files that do not say what they are."""

    dtype: Literal["uint8", "uint16", "int16", "uint32", "int32", "uint64", "int64"] | None = None
    """Type of the ids."""
    vocab_size: int | None = None
    eos_id: int | None = None
    tokenizer: Literal["gpt2"] | None = None

    __pydantic_config__ = ConfigDict(extra="forbid")


class BareFiles(Layout):
    """A folder of bare files: which they are, and what is known of them without reading them."""

    name = "bare"
    if_larger = (
        f'; if its ids are of another type, write {{"dtype": "uint32"}} to {DECLARATION} beside it, or call it '
        "NAME.uint32.bin"
    )

    def __init__(self, folder: Path):
        self.folder = folder
        self.files, self.unread = find_token_files(folder)
        declared = folder / DECLARATION
        self.declared = read_state(Declaration, declared) if declared.is_file() else Declaration()
        self.known = saved_encoding(folder)
        """None: nothing in the folder tells."""
        if self.known is None and self.declared.tokenizer == _GPT2.name:
            self.known = _GPT2
        elif self.known is None and (size := self.declared.vocab_size) is not None:
            self.known = Encoding(UNKNOWN, f"{size} ids", size, padded(size), self.declared.eos_id)

    @classmethod
    def matches(cls, folder: Path) -> bool:
        return bool(find_token_files(folder)[0])

    def encoding(self, shard: Shard) -> Encoding | None:
        return self.known or (_GPT2 if shard.dtype.itemsize == 2 else None)

    def open_file(self, path: Path) -> Shard:
        name = split_name(path.stem)
        told = self.declared.dtype or (name.dtype if name else None)
        by_vocabulary = token_dtype(self.known.vocab_size) if self.known else "uint16"
        dtype = np.dtype(told or by_vocabulary).newbyteorder("<")
        with reading(path) as file:
            size, head = os.fstat(file.fileno()).st_size, file.read(len(MAGIC))
        if head == MAGIC:
            raise UserError(
                f"{path}: a shard of danalab without its manifest.json (preparation unfinished?): "
                "run danalab data prepare again with the same flags"
            )
        if size == 0 or size % dtype.itemsize:
            raise UserError(
                f"{path}: {size} bytes is no whole number of {dtype} ids: truncated, or another type"
            )
        return Shard(path, 0, dtype, size // dtype.itemsize)


def find_token_files(folder: Path) -> tuple[dict[str, list[Path]], list[str]]:
    """Token files of each split in numeric order, `SPLIT.bin`, or `SPLIT_00.bin`, `NAME_SPLIT-00.bin` and so on; and
    the names of other .bin files, which are not read."""
    files = sorted(path for path in folder.glob("*.bin") if not path.name.startswith("."))
    splits: dict[str, list[tuple[SplitName, Path]]] = {}
    for path in files:
        name = split_name(path.stem)
        if name is not None and name.split != "test":
            splits.setdefault(name.split, []).append((name, path))
    for split, named in splits.items():
        named.sort(key=lambda pair: pair[0].number)
        if len({name.base for name, _ in named}) > 1:
            (_, first), *_, (_, last) = named
            there = f"{len(named)} files from {first.name} to {last.name}"
            raise UserError(
                f"{folder}: the split '{split}' has {there}; their names may differ in numbers only"
            )
    found = {split: [path for _, path in splits[split]] for split in ("train", "val") if split in splits}
    used = {path for paths in found.values() for path in paths}
    return found, [path.name for path in files if path not in used]
