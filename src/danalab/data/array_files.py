"""Files of token ids, [sequences, length]: .npy (mapped), .npz or .pt (read whole); which belong to which split.

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
from typing import Literal

import numpy as np

from danalab.data.splits import SPLIT_NAMES, split_name
from danalab.errors import UserError, first_line
from danalab.files import read_state, walk_files

SPLITS = ("train", "val")
SPLIT_RECORD = "split.json"
"""Written by `danalab data split`."""
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
class SplitRecord:
    """The part of `split.json` that opening the folder needs."""

    by: Literal["file", "sequence"]


def by_sequence(folder: Path) -> bool:
    """Whether the folder was split by sequence."""
    record = folder / SPLIT_RECORD
    return record.is_file() and read_state(SplitRecord, record).by == "sequence"


def chosen_rows(path: Path, sequences: int, required: bool) -> np.ndarray | None:
    """The row numbers in `path`.rows; None without such a file if it is not `required`."""
    file = path.with_name(path.name + ".rows")
    if not file.is_file():
        if required:
            raise BadArrayError(path, f"{file.name}, which lists the sequences of the split, is missing")
        return None
    try:
        rows = np.load(file, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # a damaged file may raise almost anything
        raise BadArrayError(file, f"damaged: {first_line(error)}") from error
    if not isinstance(rows, np.ndarray) or rows.ndim != 1 or rows.dtype.kind not in "ui" or len(rows) == 0:
        raise BadArrayError(file, "not a list of row numbers")
    rows = rows.astype(np.int64)
    if rows.min() < 0 or rows.max() >= sequences or len(np.unique(rows)) < len(rows):
        raise BadArrayError(file, f"not distinct rows of an array of {sequences} sequences")
    return rows


@dataclass(frozen=True)
class ArrayScan:
    """Facts of one file."""

    sequences: int
    length: int
    """Tokens per sequence."""
    item_bytes: int
    """Bytes per token."""
    max_id: int
    sha256: str
    """SHA-256 [hex] of the ids, their type and shape: the same for .npy and .pt."""


def scan_all(paths: Sequence[Path]) -> list[ArrayScan]:
    """Facts of each file, which is read once as long as it does not change; `UserError` for the first bad file."""
    with ThreadPoolExecutor(8) as pool:
        return list(
            pool.map(lambda path: _scan(path, path.stat().st_mtime_ns if path.exists() else 0), paths)
        )


@lru_cache(maxsize=65536)
def _scan(path: Path, modified: int) -> ArrayScan:
    array = open_array(path)
    verify_archive(path)
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
    return ArrayScan(len(array), array.shape[1], array.dtype.itemsize, largest, digest.hexdigest())


def open_array(path: Path) -> np.ndarray:
    """The ids of a file, [sequences, length], of an integer type; mapped for .npy, else in memory."""
    if path.is_symlink() and not path.exists():
        raise BadArrayError(path, f"a dangling symbolic link (to {os.readlink(path)})")
    if not path.is_file():  # a named pipe would block
        raise BadArrayError(path, "not a regular file")
    try:
        array = READERS[path.suffix](path)
    except BadArrayError:
        raise
    except MemoryError:
        raise BadArrayError(path, "larger than memory") from None
    except pickle.UnpicklingError as error:
        raise BadArrayError(path, "refused: damaged, or more than tensors; nothing was executed") from error
    except Exception as error:  # a damaged file may make its format's reader raise almost anything
        raise BadArrayError(path, f"damaged: {first_line(error)}") from error
    _check(path, array)
    return array


def verify_archive(path: Path) -> None:
    """Check the checksums inside of archives, which torch ignores when it loads a .pt."""
    if path.suffix == ".npy":
        return
    try:
        if not zipfile.is_zipfile(path):
            return  # torch's older format has no checksums
        with zipfile.ZipFile(path) as archive:
            member = archive.testzip()
    except Exception as error:
        raise BadArrayError(path, f"damaged: {first_line(error)}") from error
    if member is not None:
        raise BadArrayError(path, f"damaged: the checksum of {member} is wrong")


def blocks(path: Path, array: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """(first row, rows) of an opened array, some MiB at a time; mapped files are read without touching the mapping."""
    length = array.shape[1]
    step = max(1, _BLOCK_BYTES // (length * array.dtype.itemsize))
    plain = isinstance(array, np.memmap) and array.flags.c_contiguous
    offset = int(getattr(array, "offset", 0))
    with open(path, "rb") as file:
        for start in range(0, len(array), step):
            if not plain:
                yield start, np.ascontiguousarray(array[start : start + step])
                continue
            count = min(step, len(array) - start)
            file.seek(offset + start * length * array.dtype.itemsize)
            rows = np.fromfile(file, array.dtype, count * length)
            if len(rows) < count * length:
                raise BadArrayError(path, "truncated while it was read")
            yield start, rows.reshape(count, length)


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


def _read_npz(path: Path) -> np.ndarray:
    with np.load(path, allow_pickle=False) as archive:
        if len(archive.files) != 1:
            raise BadArrayError(path, f"holds {len(archive.files)} arrays; it must hold one")
        return archive[archive.files[0]]


def _read_pt(path: Path) -> np.ndarray:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensor = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(tensor, torch.Tensor):
        raise BadArrayError(path, f"holds a {type(tensor).__name__}, not a tensor")
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise BadArrayError(path, f"its shape {list(tensor.shape)} repeats the few values it holds")
    if tensor.dtype == torch.bfloat16:  # unknown to numpy
        raise BadArrayError(path, "bfloat16, not integers")
    return tensor.numpy()


READERS: dict[str, Callable[[Path], np.ndarray]] = {".npy": _read_npy, ".npz": _read_npz, ".pt": _read_pt}
"""Reader of each suffix."""


def _check(path: Path, array: np.ndarray) -> None:
    if array.ndim != 2:
        stream = (
            "; streams of one dimension lie beside each other in a folder of their own"
            if array.ndim == 1
            else ""
        )
        raise BadArrayError(path, f"its shape is {list(array.shape)}; it must be [sequences, length]{stream}")
    if array.dtype.kind not in "ui":
        bad = array.dtype.kind == "f" and not np.isfinite(array[:1024]).all()
        raise BadArrayError(
            path, f"{array.dtype.name}, not integers{'; it has NaN or infinity' if bad else ''}"
        )
    if len(array) == 0:
        raise BadArrayError(path, "no sequences in it")
    if array.shape[1] < 2:
        raise BadArrayError(path, f"its sequences have {array.shape[1]} token(s); they must have at least 2")
