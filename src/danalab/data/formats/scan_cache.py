"""Results of reading data files through, kept in the user's cache folder `scans`.

Every entry ends with the SHA-256 of what comes before it. An entry that is damaged, or of an older format, is
treated as absent: the caller scans again and replaces it.
"""

import contextlib
import hashlib
import io
import json
import logging
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from danalab.files import cache_folder, write_atomically

_DIGEST_BYTES = 65  # "\n" and the hexadecimal SHA-256
_log = logging.getLogger(__name__)
T = TypeVar("T")
_read_only: list[bool] = []


@contextlib.contextmanager
def read_only() -> Iterator[None]:
    """Results are read and not kept: for commands that write nothing."""
    _read_only.append(True)
    try:
        yield
    finally:
        _read_only.pop()


def file_key(path: Path, *format_: object) -> str:
    """Name of the entry for one file: changes with its path, size, time of change, and `format_`."""
    status = path.stat()
    identity = [str(path.resolve()), status.st_size, status.st_mtime_ns, *map(str, format_)]
    return f"{hashlib.sha256(json.dumps(identity).encode()).hexdigest()}.json"


def load_facts(kind: type[T], key: str) -> T | None:
    """The data class stored by `save_facts`; None when there is no intact entry."""
    content = _verified(key)
    return None if content is None else kind(**json.loads(content.tobytes()))


def save_facts(key: str, facts: Any) -> None:
    """Store a data class of plain values."""
    _save(key, json.dumps(asdict(facts)).encode())


def load_array(key: str) -> np.ndarray | None:
    """The array stored by `save_array`, memory-mapped; None when there is no intact entry."""
    return None if _verified(key) is None else np.load(_path(key), mmap_mode="r", allow_pickle=False)


def save_array(key: str, array: np.ndarray) -> None:
    """Store an array as .npy."""
    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    _save(key, content.getvalue())


def _path(key: str) -> Path:
    return cache_folder("scans") / key


def _verified(key: str) -> np.ndarray | None:
    """The bytes of an entry, mapped, without their hash."""
    path = _path(key)
    try:
        if not path.is_file():  # a named pipe would block
            return None
        entry = np.memmap(path, np.uint8, "r")
    except (OSError, ValueError):  # an empty file cannot be mapped
        return None
    content, digest = entry[:-_DIGEST_BYTES], entry[-_DIGEST_BYTES:]
    if digest.tobytes() == _digest(content):
        return content
    _log.warning("%s: damaged, or written by an older danalab: scanning the data again", path)
    return None


def _digest(content: Any) -> bytes:
    return b"\n" + hashlib.sha256(content).hexdigest().encode()


def _save(key: str, content: bytes) -> None:
    if _read_only:
        return
    path = _path(key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content + _digest(content))
    except OSError as error:
        _log.info("%s: the scan is not kept: %s", path, error)
