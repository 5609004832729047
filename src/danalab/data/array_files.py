"""Files of token ids, [sequences, length]: .npy (mapped), .npz or .pt (read whole); and what one pass over them finds.

No code in a file is executed, and every fault becomes a `BadArrayError`: the formats' own readers fail in many ways.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import pickle
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from danalab.data.formats import scan_cache
from danalab.errors import UserError, first_line
from danalab.files import refuse_shared_tuples, require_uncompressed, walk_files
from danalab.hardware import available_cores, host_memory

_BLOCK_BYTES = 1 << 23  # small enough to stay in cache between the passes over it
_log = logging.getLogger(__name__)


class BadArrayError(UserError):
    """A file is not an array of token ids; `reason` is the message without the file's name."""

    def __init__(self, path: Path, reason: str):
        super().__init__(f"{path}: {reason}")
        self.reason = reason


def find_files(folder: Path) -> list[Path]:
    """All array files below `folder`, links followed, sorted by relative path; hidden names are skipped."""
    files = (path for path in walk_files(folder) if path.suffix in READERS)
    return sorted(files, key=lambda path: path.relative_to(folder).as_posix())


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
    """Scan each file, or take its scan from the cache if it has not changed; `UserError` for the first bad file."""
    keys = [_key(path) for path in paths]
    results = [scan_cache.load_facts(ArrayScan, key) for key in keys]
    missing = [number for number, result in enumerate(results) if result is None]
    if missing:
        _log.info("%d array file(s): scanning them once for the range of their ids", len(missing))
        with ThreadPoolExecutor(min(available_cores(), 8)) as pool:
            for number, result in zip(missing, pool.map(_scan, [paths[i] for i in missing]), strict=True):
                results[number] = result
                scan_cache.save_facts(keys[number], result)
    return [result for result in results if result is not None]


def _scan(path: Path) -> ArrayScan:
    array = open_array(path)
    verify_archive(path)
    digest = hashlib.sha256(f"{array.dtype.str}|{array.shape}|".encode())
    largest = 0
    for start, rows in blocks(path, array):
        digest.update(rows.data)
        largest = max(largest, int(rows.max()))
        if rows.dtype.kind == "i" and int(rows.min()) < 0:
            row, column = divmod(int((rows < 0).argmax()), rows.shape[1])
            raise BadArrayError(path, f"token id {rows[row, column]} at [{start + row}, {column}] is negative")
    return ArrayScan(len(array), array.shape[1], array.dtype.itemsize, largest, digest.hexdigest())


def _key(path: Path) -> str:
    if path.is_symlink() and not path.exists():
        open_array(path)  # raises, naming the link's target
    try:
        return scan_cache.file_key(path, "array")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from error


def open_array(path: Path) -> np.ndarray:
    """The ids of a file, [sequences, length], of an integer type; mapped for .npy, else in memory."""
    if path.is_symlink() and not path.exists():
        raise BadArrayError(path, f"a dangling symbolic link (to {os.readlink(path)})")
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise BadArrayError(path, "not a regular file")
        if size == 0:
            raise BadArrayError(path, "empty")
        array = READERS[path.suffix](path)
    except BadArrayError:
        raise
    except OSError as error:
        raise BadArrayError(path, f"cannot be read: {error.strerror or error}") from error
    except MemoryError:
        raise BadArrayError(path, "larger than memory") from None
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
        if not file.read(6).startswith(b"\x93NUMPY"[: path.stat().st_size]):
            raise BadArrayError(path, "damaged, or bare ids without the header of a .npy; rename these to train.bin")
    array = np.lib.format.open_memmap(path, mode="r")
    extra = path.stat().st_size - array.offset - array.nbytes
    if extra:
        raise BadArrayError(path, f"{extra} bytes more than its header says")
    return array


def _read_npz(path: Path) -> np.ndarray:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if len(members) != 1:
            raise BadArrayError(path, f"holds {len(members)} arrays; it must hold one")
        if members[0].file_size > host_memory():
            raise BadArrayError(path, f"unpacks to {members[0].file_size:,} bytes, larger than memory")
        with archive.open(members[0]) as stream:
            if _claimed_bytes(stream) > members[0].file_size:
                raise BadArrayError(path, "shorter than its header says")
    with np.load(path, allow_pickle=False) as archive:
        return archive[archive.files[0]]


def _claimed_bytes(stream: IO[bytes]) -> int:
    first = np.lib.format.read_magic(stream) == (1, 0)
    read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(stream)
    return math.prod(shape) * dtype.itemsize


def _read_pt(path: Path) -> np.ndarray:
    import torch

    try:
        with warnings.catch_warnings(), open(path, "rb") as file:
            warnings.simplefilter("ignore")
            if zipfile.is_zipfile(path):
                require_uncompressed(file, path.stat().st_size)
            else:  # torch's older format: magic number, version, system, tensor, names of storages
                for _ in range(5):
                    refuse_shared_tuples(file)
            tensor = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise BadArrayError(path, f"refused: more than tensors; nothing was executed ({_cause(error)})") from error
    if not isinstance(tensor, torch.Tensor):
        raise BadArrayError(path, f"holds a {type(tensor).__name__}, not a tensor")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise BadArrayError(path, "not a plain (strided) tensor")
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise BadArrayError(path, f"its shape {list(tensor.shape)} repeats the few values it holds")
    if tensor.dtype == torch.bfloat16:  # unknown to numpy
        raise BadArrayError(path, "bfloat16, not integers")
    return tensor.detach().resolve_conj().numpy()


READERS: dict[str, Callable[[Path], np.ndarray]] = {".npy": _read_npy, ".npz": _read_npz, ".pt": _read_pt}
"""Reader of each suffix."""


def _check(path: Path, array: np.ndarray) -> None:
    if array.ndim != 2:
        stream = "; streams of one dimension lie beside each other in a folder of their own" if array.ndim == 1 else ""
        raise BadArrayError(path, f"its shape is {list(array.shape)}; it must be [sequences, length]{stream}")
    if array.dtype.kind not in "ui":
        raise BadArrayError(path, f"{array.dtype.name}, not integers{_not_a_number(array)}")
    if len(array) == 0:
        raise BadArrayError(path, "no sequences in it")
    if array.shape[1] < 2:
        raise BadArrayError(path, f"its sequences have {array.shape[1]} token(s); they must have at least 2")


def _not_a_number(array: np.ndarray) -> str:
    if array.dtype.kind not in "fc":
        return ""
    bad = np.flatnonzero(~np.isfinite(np.asarray(array[:1024])))
    if not len(bad):
        return ""
    row, column = divmod(int(bad[0]), max(array.shape[1], 1))
    return f"; NaN or infinite at [{row}, {column}]"


def _cause(error: Exception) -> str:
    """The part of torch's explanation that names the object."""
    text = str(error)
    begin = text.find("Unsupported")
    return first_line(text[max(begin, 0) :]).split(". ")[0][:160]
