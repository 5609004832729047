"""Files that survive a crash: atomic writes, folder fsync, hashes, JSON."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from danalab.errors import UserError


def fsync_folder(path: str | os.PathLike[str]) -> None:
    """Make renames and new names inside the folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Write `data` so that a reader sees the old file or the whole new one, whatever happens in between.

    Temporary file in the same folder, fsync, rename, fsync of the folder. The temporary file is removed on failure.

    Raises:
        OSError: the disk is full, or the folder cannot be written; names a file.
    """
    path = Path(path)
    payload = data.encode() if isinstance(data, str) else data
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files private; a run folder is shared like any other file of its owner.
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # the system doesn't name a file that was open
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    fsync_folder(path.parent)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def sha256(path: str | os.PathLike[str]) -> str:
    """Hexadecimal SHA-256 of a file's content."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def read_json(path: str | os.PathLike[str]) -> Any:
    """Parse a JSON file.

    Raises:
        UserError: absent, unreadable or malformed; the message names the file and the position.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid JSON: {error}") from error


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    write_atomically(path, json.dumps(value, indent=2) + "\n")
