"""Token files without a header: nanoGPT's `train.bin`/`val.bin`, or folders of `train_00.bin`, `train_01.bin`, ...

Little-endian uint16, documents run together, GPT-2's ids unless a `tokenizer.json` lies beside them. A file is read
through once, for its largest id and its hash; the result is kept in the user's cache folder by path, size and time.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from danalab.data.shards import MAGIC, Shard
from danalab.errors import UserError
from danalab.files import write_atomically

_DTYPE = np.dtype("<u2")
_BLOCK = 1 << 25
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Scan:
    """What reading a bare file through has shown."""

    max_id: int
    sha256: str


def find_bare(folder: Path, split: str) -> list[Path]:
    """`SPLIT.bin`, or `SPLIT_00.bin` (`SPLIT-00.bin`) and so on, by their numbers; empty when there is none.

    Raises:
        UserError: the numbers have a gap: a shard is missing.
    """
    single = folder / f"{split}.bin"
    if single.is_file():
        return [single]
    numbered = {}
    for path in folder.glob(f"{split}[_-]*.bin"):
        if match := re.fullmatch(rf"{split}[_-](\d+)\.bin", path.name):
            numbered[int(match[1])] = path
    absent = sorted(set(range(max(numbered, default=0))) - set(numbered) - {0}) if numbered else []
    if absent:
        near = numbered[max(numbered)].name
        raise UserError(
            f"{folder}: shards {', '.join(map(str, absent[:8]))} of '{split}' are missing (the last is {near})"
        )
    return [numbered[number] for number in sorted(numbered)]


def open_bare(path: Path) -> Shard:
    """The tokens of a bare file.

    Raises:
        UserError: empty, an odd number of bytes, or a shard that has lost its manifest.
    """
    size = path.stat().st_size
    if size == 0 or size % _DTYPE.itemsize:
        raise UserError(f"{path}: {size} bytes is not a whole number of uint16 tokens")
    with open(path, "rb") as file:
        if file.read(len(MAGIC)) == MAGIC:
            raise UserError(
                f"{path}: a shard of danalab without its manifest.json (preparation unfinished?): "
                "run danalab data prepare again with the same flags"
            )
    return Shard(path, 0, _DTYPE, size // _DTYPE.itemsize)


def scan(shard: Shard) -> Scan:
    """Largest id and hash of a bare file; from the cache when the file has not changed."""
    status = shard.path.stat()
    identity = f"{shard.path.resolve()}|{status.st_size}|{status.st_mtime_ns}"
    cached = _cache_folder() / f"{hashlib.sha256(identity.encode()).hexdigest()}.json"
    try:
        return Scan(**json.loads(cached.read_text()))
    except (OSError, ValueError, TypeError):
        pass
    _log.info("%s: reading %d tokens through, once, for their range", shard.path, shard.n_tokens)
    ids = shard.tokens()
    digest, largest = hashlib.sha256(), 0
    for start in range(0, len(ids), _BLOCK):
        block = ids[start : start + _BLOCK]
        digest.update(block.data)
        largest = max(largest, int(block.max()))
    result = Scan(largest, digest.hexdigest())
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(cached, json.dumps(asdict(result)))
    except OSError as error:
        _log.info("%s: the scan of %s is not kept: %s", cached, shard.path, error)
    return result


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "danalab" / "scans"
