"""The layout "arrays": each row of .npy or .pt files is one training sequence x, inputs x[:-1], targets x[1:].

The files lie below a folder, or below its `train/` and `val/` (`danalab data split`), or their names say the split, as
in `train_00.npy` and `valid_00.npy`. No code in a file is executed.
"""

from __future__ import annotations

import pickle
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from danalab.data.formats.shards import Encoding, Shard, reading
from danalab.data.layout import Layout, saved_encoding
from danalab.data.splits import SPLIT_NAMES, split_name
from danalab.errors import UserError, first_line
from danalab.files import walk_files

SUFFIXES = (".npy", ".pt")


class Arrays(Layout):
    """A folder of arrays, or one array."""

    name = "arrays"

    def __init__(self, folder: Path):
        if folder.is_file():
            self.folder, self.files = folder.parent, {"train": [folder]}
        else:
            self.folder = folder
            self.files, unread = files_by_split(folder)
            self.unread = [path.relative_to(folder).as_posix() for path in unread]
        self.how_to_split = f"; run danalab data split {self.folder} --output-path {self.folder}-split"

    @classmethod
    def matches(cls, folder: Path) -> bool:
        return any(path.suffix in SUFFIXES for path in walk_files(folder))

    def open_file(self, path: Path) -> Shard:
        return open_array(path)

    def encoding(self, shard: Shard) -> Encoding | None:
        return saved_encoding(self.folder)


def find_files(folder: Path) -> list[Path]:
    """All array files below `folder`, links followed, sorted by relative path; hidden names are skipped."""
    files = (path for path in walk_files(folder) if path.suffix in SUFFIXES)
    return sorted(files, key=lambda path: path.relative_to(folder).as_posix())


def files_by_split(folder: Path) -> tuple[dict[str, list[Path]], list[Path]]:
    """(files of each split, files that are not read): names of folders, then of files, say the split.

    Without splits, all files are "train".
    """
    by_name: dict[str | None, list[Path]] = {}
    files = find_files(folder)
    for path in files:
        below = path.relative_to(folder)
        words = (SPLIT_NAMES.get(part) for part in below.parts[:-1])
        name = split_name(below.stem)
        by_name.setdefault(next(filter(None, words), name.split if name else None), []).append(path)
    train, val = by_name.get("train") or by_name.get(None, []), by_name.get("val", [])
    if not has_splits(folder) and not (train and (val or "test" in by_name)):
        return {"train": files}, []
    splits = {"train": train, "val": val} if val or has_splits(folder) else {"train": train}
    return splits, [path for path in files if path not in {*train, *val}]


def has_splits(folder: Path) -> bool:
    """Whether the folder has train/ and val/, or other words for them."""
    return {"train", "val"} <= {SPLIT_NAMES[name] for name in SPLIT_NAMES if (folder / name).is_dir()}


def open_array(path: Path) -> Shard:
    """The ids of a file, [sequences, length], not read, but for the checksums of a .pt."""
    with reading(path):  # it is a regular file
        pass
    try:
        offset, dtype, shape = _npy(path) if path.suffix == ".npy" else _pt(path)
    except pickle.UnpicklingError as error:
        more = "damaged, or more than tensors; nothing was executed"
        raise UserError(f"{path}: refused: {more}") from error
    except Exception as error:  # a damaged file may make its format's reader raise almost anything
        raise UserError(f"{path}: damaged, or not rows of integers: {first_line(error)}") from error
    if len(shape) != 2 or shape[0] == 0 or shape[1] < 2:
        raise UserError(
            f"{path}: its shape is {list(shape)}; it must be [sequences, length], with at least one sequence of 2"
        )
    return Shard(path, offset, dtype, shape[0] * shape[1], shape[1])


def _npy(path: Path) -> tuple[int, np.dtype, Sequence[int]]:
    """Offset, type and shape of the ids of a .npy."""
    array = np.lib.format.open_memmap(path, mode="r")  # only its header is read
    if array.dtype.kind not in "ui" or not array.flags.c_contiguous:
        raise ValueError(f"{array.dtype.name} of shape {list(array.shape)}")
    if extra := path.stat().st_size - array.offset - array.nbytes:
        raise ValueError(f"{extra} bytes more than its header says")
    return array.offset, array.dtype, array.shape


def _pt(path: Path) -> tuple[int, np.dtype, Sequence[int]]:
    """Offset, type and shape of the tensor of a .pt, whose values lie uncompressed in a zip archive."""
    import torch

    with zipfile.ZipFile(path) as archive:
        if (member := archive.testzip()) is not None:  # torch ignores the checksums
            raise ValueError(f"the checksum of {member} is wrong")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensor = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    if not isinstance(tensor, torch.Tensor) or not tensor.is_contiguous():
        raise ValueError(
            f"a {type(tensor).__name__}; it must be a tensor, and no view (save it with .clone())"
        )
    dtype = np.dtype(str(tensor.dtype).removeprefix("torch.")).newbyteorder("<")
    if dtype.kind not in "ui":
        raise ValueError(dtype.name)
    reader: Any = torch._C.PyTorchFileReader(str(path))  # whose types lack the method
    offset = reader.get_record_offset("data/0") + int(tensor.storage_offset()) * dtype.itemsize
    return offset, dtype, tensor.shape
