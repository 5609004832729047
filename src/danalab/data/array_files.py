"""Files of token ids, [sequences, length], memory-mapped: .npy and .pt; and which belong to which split.

No code in a file is executed, and every fault becomes a `BadArrayError`: the formats' own readers fail in many ways.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from danalab.data.splits import SPLIT_NAMES, split_name
from danalab.errors import UserError, first_line
from danalab.files import walk_files

SPLITS = ("train", "val")
_BLOCK_BYTES = 1 << 23  # small enough to stay in cache between the passes over it


class BadArrayError(UserError):
    """A file is not an array of token ids; `reason` is the message without the file's name."""

    def __init__(self, path: Path, reason: str):
        super().__init__(f"{path}: {reason}")
        self.reason = reason


def find_files(folder: Path) -> list[Path]:
    """All array files below `folder`, links followed, sorted by relative path; hidden names are skipped."""
    files = (path for path in walk_files(folder) if path.suffix in READERS)
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
    there = {SPLIT_NAMES[name] for name in SPLIT_NAMES if (folder / name).is_dir()}
    return there >= set(SPLITS)


@dataclass(frozen=True)
class ArrayFile:
    """What one pass over a file finds."""

    path: Path
    sequences: int
    length: int
    """Tokens per sequence."""
    bytes: int
    """Size of the file."""
    max_id: int
    sha256: str
    """SHA-256 [hex] of the ids, their type and shape: the same for .npy and .pt."""


def scan_all(paths: Sequence[Path]) -> list[ArrayFile]:
    """Each file, read once as long as it does not change; `UserError` for the first bad one."""

    def scan(path: Path) -> ArrayFile:
        return _scan(path, path.stat().st_mtime_ns if path.exists() else 0)

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(scan, paths))


@lru_cache(maxsize=65536)
def _scan(path: Path, modified: int) -> ArrayFile:
    array = open_array(path)
    digest = hashlib.sha256(f"{array.dtype.str}|{array.shape}|".encode())
    largest = 0
    for start, rows in blocks(path, array):
        digest.update(rows.data)
        largest = max(largest, int(rows.max()))
        if rows.dtype.kind == "i" and int(rows.min()) < 0:
            row, column = divmod(int((rows < 0).argmax()), rows.shape[1])
            raise BadArrayError(
                path, f"token id {rows[row, column]} at [{start + row}, {column}] is negative"
            )
    sequences, length = array.shape
    return ArrayFile(path, sequences, length, path.stat().st_size, largest, digest.hexdigest())


def open_array(path: Path) -> np.ndarray:
    """The ids of a file, [sequences, length], of an integer type, memory-mapped."""
    if path.is_symlink() and not path.exists():
        raise BadArrayError(path, f"a dangling symbolic link (to {os.readlink(path)})")
    if not path.is_file():  # a named pipe would block
        raise BadArrayError(path, "not a regular file")
    try:
        array = READERS[path.suffix](path)
    except BadArrayError:
        raise
    except pickle.UnpicklingError as error:
        raise BadArrayError(path, "refused: damaged, or more than tensors; nothing was executed") from error
    except Exception as error:  # a damaged file may make its format's reader raise almost anything
        raise BadArrayError(path, f"damaged: {first_line(error)}") from error
    if array.ndim != 2:
        more = "; streams of one dimension lie in a folder of their own" if array.ndim == 1 else ""
        raise BadArrayError(path, f"its shape is {list(array.shape)}; it must be [sequences, length]{more}")
    if array.dtype.kind not in "ui":
        bad = array.dtype.kind == "f" and not np.isfinite(array[:1024]).all()
        more = "; it has NaN or infinity" if bad else ""
        raise BadArrayError(path, f"{array.dtype.name}, not integers{more}")
    if len(array) == 0:
        raise BadArrayError(path, "no sequences in it")
    if array.shape[1] < 2:
        raise BadArrayError(path, f"its sequences have {array.shape[1]} token(s); they must have at least 2")
    return array


def blocks(path: Path, array: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """(first row, rows) of an opened array, some MiB at a time, after the checksums of a .pt, which torch ignores."""
    if path.suffix == ".pt":
        try:
            with zipfile.ZipFile(path) as archive:
                member = archive.testzip()
        except Exception as error:
            raise BadArrayError(path, f"damaged: {first_line(error)}") from error
        if member is not None:
            raise BadArrayError(path, f"damaged: the checksum of {member} is wrong")
    step = max(1, _BLOCK_BYTES // (array.shape[1] * array.dtype.itemsize))
    for start in range(0, len(array), step):
        yield start, np.ascontiguousarray(array[start : start + step])


def _read_npy(path: Path) -> np.ndarray:
    with open(path, "rb") as file:
        if file.read(6) != b"\x93NUMPY":
            raise BadArrayError(
                path, "damaged, or bare ids without the header of a .npy; rename these to train.bin"
            )
    array = np.lib.format.open_memmap(path, mode="r")
    if extra := path.stat().st_size - array.offset - array.nbytes:
        raise BadArrayError(path, f"{extra} bytes more than its header says")
    return array


def _read_pt(path: Path) -> np.ndarray:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensor = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    if not isinstance(tensor, torch.Tensor):
        raise BadArrayError(path, f"holds a {type(tensor).__name__}, not a tensor")
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise BadArrayError(path, f"its shape {list(tensor.shape)} repeats the few values it holds")
    if tensor.dtype == torch.bfloat16:  # unknown to numpy
        raise BadArrayError(path, "bfloat16, not integers")
    return tensor.numpy()


READERS: dict[str, Callable[[Path], np.ndarray]] = {".npy": _read_npy, ".pt": _read_pt}
"""Reader of each suffix."""
