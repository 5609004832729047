"""The facts of array files, from one pass over each; cached by path, size and time of change."""

import hashlib
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from danalab.data.environment import available_cores
from danalab.data.formats import scan_cache
from danalab.data.formats.arrays.files import BadArrayError, blocks, open_array, verify_archive
from danalab.errors import UserError

_log = logging.getLogger(__name__)


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
    """Of the ids, their type and shape: the same for .npy and .pt."""


def scan_all(paths: Sequence[Path]) -> list[ArrayScan]:
    """Scan each file, or take its scan from the cache if it has not changed.

    Raises:
        UserError: names the first file that is not an array of ids or has a negative one.
    """
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
