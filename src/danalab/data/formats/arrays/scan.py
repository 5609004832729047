"""What reading an array through has shown; kept in the user's cache folder by path, size and time of change."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from danalab.data.formats.arrays.files import BadArrayError, blocks, open_array, verify_archive
from danalab.data.order.documents import cache_folder
from danalab.data.preparation.workers import available_cores
from danalab.errors import UserError
from danalab.files import write_atomically

_VERSION = 1
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ArrayScan:
    """Facts of one file."""

    sequences: int
    length: int
    """Tokens a sequence."""
    item_bytes: int
    """Bytes a token."""
    max_id: int
    sha256: str
    """Of the ids, their type and shape: the same for .npy and .pt."""


def scan_all(paths: Sequence[Path]) -> list[ArrayScan]:
    """Scan each file, from the cache where it has not changed.

    Raises:
        UserError: the first file, by order, that is not an array of ids or has a negative one.
    """
    results: list[ArrayScan | None] = [_cached(path) for path in paths]
    missing = [number for number, result in enumerate(results) if result is None]
    if missing:
        _log.info("%d array file(s): reading them through, once, for the range of their ids", len(missing))
        with ThreadPoolExecutor(min(available_cores(), 8)) as pool:
            for number, result in zip(missing, pool.map(_scan, [paths[i] for i in missing]), strict=True):
                results[number] = result
                _keep(paths[number], result)
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


def _place(path: Path) -> Path:
    try:
        status = path.stat()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from error
    identity = f"array {_VERSION}|{path.resolve()}|{status.st_size}|{status.st_mtime_ns}"
    return cache_folder() / f"{hashlib.sha256(identity.encode()).hexdigest()}.json"


def _cached(path: Path) -> ArrayScan | None:
    if path.is_symlink() and not path.exists():
        open_array(path)  # says which link it is
    try:
        return ArrayScan(**json.loads(_place(path).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _keep(path: Path, result: ArrayScan) -> None:
    place = _place(path)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, json.dumps(asdict(result)))
    except OSError as error:
        _log.info("%s: the scan of %s is not kept: %s", place, path, error)
