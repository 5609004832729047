"""Token files without a header: nanoGPT's `train.bin`/`val.bin`, or folders of `train_00.bin`, `train_01.bin`, ...

Little-endian, documents run together, GPT-2's ids unless a `tokenizer.json` lies beside them: uint16, or uint32 where
its vocabulary exceeds 65,535. A file is read through once, for its largest id and its hash; the result is kept in the
user's cache folder by path, size and time.

Nothing in such files tells whether an id is the one that was written. `record` writes the hashes of all files to
`checksums.json`; from then on another content is refused.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from danalab.data.dataset import Dataset, fingerprint_of
from danalab.data.formats.layouts import Fault, Layout
from danalab.data.formats.shards import MAGIC, Shard, reading, token_dtype
from danalab.data.formats.store import TokenStore
from danalab.data.tokenizers import load_tokenizer
from danalab.data.tokenizers.base import padded
from danalab.errors import UserError
from danalab.files import read_json, sha256, write_atomically, write_json

CHECKSUMS = "checksums.json"
_BLOCK = 1 << 25
_SPLITS = ("train", "val")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Scan:
    """What reading a bare file through has shown."""

    max_id: int
    sha256: str


@dataclass(frozen=True)
class _Vocabulary:
    """Whose ids the files hold."""

    name: str
    n_tokens: int
    eos_id: int
    fingerprint: str


_GPT2 = _Vocabulary("gpt2", 50_257, 50_256, "gpt2")  # what nanoGPT and the FineWeb scripts of the literature write


def find_bare(folder: Path, split: str) -> list[Path]:
    """`SPLIT.bin`, or `SPLIT_00.bin` (`SPLIT-00.bin`) and so on, by their numbers; empty when there is none.

    Raises:
        UserError: the numbers have a gap or occur twice, there is one of each kind, or a link leads nowhere.
    """
    single = folder / f"{split}.bin"
    numbered: dict[int, Path] = {}
    for path in sorted(folder.glob(f"{split}[_-]*.bin")):
        if match := re.fullmatch(rf"{split}[_-](\d+)\.bin", path.name):
            number = int(match[1])
            if number in numbered:
                raise UserError(f"{path}: shard {number} of '{split}' a second time, beside {numbered[number].name}")
            numbered[number] = path
    if os.path.lexists(single):
        if numbered:
            beside = numbered[min(numbered)].name
            raise UserError(
                f"{folder}: {single.name} and {beside}: which is the split '{split}'? Move one of them away"
            )
        return [single]
    absent = sorted(set(range(max(numbered, default=0))) - set(numbered) - {0}) if numbered else []
    if absent:
        near = numbered[max(numbered)].name
        raise UserError(
            f"{folder}: shards {', '.join(map(str, absent[:8]))} of '{split}' are missing (the last is {near})"
        )
    return [numbered[number] for number in sorted(numbered)]


def open_bare(path: Path, dtype: np.dtype) -> Shard:
    """The tokens of a bare file.

    Raises:
        UserError: unreadable, empty, not a whole number of tokens, or a shard that has lost its manifest.
    """
    with reading(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            raise UserError(f"{path}: empty")
        if size % dtype.itemsize:
            raise UserError(
                f"{path}: {size} bytes is not a whole number of {dtype.name} tokens: truncated, or of another type"
            )
        if file.read(len(MAGIC)) == MAGIC:
            raise UserError(
                f"{path}: a shard of danalab without its manifest.json (preparation unfinished?): "
                "run danalab data prepare again with the same flags"
            )
    return Shard(path, 0, dtype, size // dtype.itemsize)


def scan(shard: Shard, *, anew: bool = False) -> Scan:
    """Largest id and hash of a bare file; from the cache when the file has not changed and is not to be read `anew`.

    Raises:
        UserError: the file cannot be read.
    """
    status = shard.path.stat()
    identity = f"{shard.path.resolve()}|{status.st_size}|{status.st_mtime_ns}|{shard.dtype.name}"
    cached = _cache_folder() / f"{hashlib.sha256(identity.encode()).hexdigest()}.json"
    if not anew:
        try:
            return Scan(**json.loads(cached.read_text()))
        except (OSError, ValueError, TypeError):
            pass
    _log.info("%s: reading %d tokens through, once, for their range", shard.path, shard.n_tokens)
    digest, largest = hashlib.sha256(), 0
    with reading(shard.path) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            largest = max(largest, int(np.frombuffer(block, shard.dtype).max()))
    result = Scan(largest, digest.hexdigest())
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(cached, json.dumps(asdict(result)))
    except OSError as error:
        _log.info("%s: the scan of %s is not kept: %s", cached, shard.path, error)
    return result


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "danalab" / "scans"


def _vocabulary(folder: Path) -> _Vocabulary:
    if not (folder / "tokenizer.json").is_file():
        return _GPT2
    tokenizer = load_tokenizer(folder)
    return _Vocabulary(tokenizer.name, tokenizer.n_tokens, tokenizer.eos_id, tokenizer.fingerprint)


def _found_in(folder: Path) -> bool:
    return any(
        re.fullmatch(r"(train|val)([_-]\d+)?\.bin", name.name) for name in folder.iterdir() if name.suffix == ".bin"
    )


def _splits(folder: Path) -> list[str]:
    return [split for split in _SPLITS if find_bare(folder, split)]


def _open(folder: Path, split: str) -> Dataset:
    files = find_bare(folder, split)
    if not files:
        there = ", ".join(_splits(folder))
        raise UserError(f"{folder}: no split '{split}' (no {split}.bin); there are: {there}")
    vocabulary = _vocabulary(folder)
    shards = [open_bare(file, token_dtype(padded(vocabulary.n_tokens))) for file in files]
    scans = [scan(shard) for shard in shards]
    recorded = _recorded(folder)
    for shard, found in zip(shards, scans, strict=True):
        if recorded and recorded.get(shard.path.name) != found.sha256:
            raise UserError(f"{shard.path}: not the content that {CHECKSUMS} recorded")
    refuse_twins([(shard.path, found.sha256) for shard, found in zip(shards, scans, strict=True)])
    dataset = Dataset(
        folder,
        split,
        TokenStore(shards, f"{folder} ({split})"),
        vocab_size=padded(vocabulary.n_tokens),
        eos_id=vocabulary.eos_id,
        fingerprint=fingerprint_of(vocabulary.fingerprint, [scan.sha256 for scan in scans]),
        max_ids=[scan.max_id for scan in scans],
        tokenizer_name=vocabulary.name,
    )
    dataset.check_vocab(dataset.vocab_size)
    return dataset


def refuse_twins(hashes: list[tuple[Path, str]]) -> None:
    """Refuse two shards of the same content: their tokens would be trained on twice.

    Raises:
        UserError: names both.
    """
    seen: dict[str, Path] = {}
    for path, digest in hashes:
        if digest in seen:
            raise UserError(f"{path}: the same content as {seen[digest].name}: a shard copied twice?")
        seen[digest] = path


def record(folder: Path) -> Path:
    """Write the hash of every file of a data set of bare files to `checksums.json`; returns its path.

    Raises:
        UserError: no bare files there, or one that cannot be read.
    """
    files = [path for split in _SPLITS for path in find_bare(folder, split)]
    if not files:
        raise UserError(f"{folder}: no {' or '.join(f'{split}.bin' for split in _SPLITS)} to record")
    files += [path for path in sorted(folder.glob("tokenizer*.json")) if path.is_file()]
    hashes = {}
    for path in files:
        with reading(path):
            hashes[path.name] = sha256(path)
    write_json(folder / CHECKSUMS, hashes)
    return folder / CHECKSUMS


def _recorded(folder: Path) -> dict[str, str]:
    """File -> SHA-256, empty when nothing was recorded."""
    file = folder / CHECKSUMS
    if not os.path.lexists(file):
        return {}
    hashes = read_json(file)
    if not isinstance(hashes, dict) or not hashes or not all(isinstance(value, str) for value in hashes.values()):
        raise UserError(f"{file}: malformed; delete it, or record the hashes again")
    return hashes


def _facts(folder: Path) -> dict[str, Any]:
    return {"source": None, "documents": {}, "text_bytes": {}}


def _verify(folder: Path) -> Iterator[Fault]:
    """Sizes, ids, twins, and the recorded hashes where there are any."""
    recorded = _recorded(folder)
    for name, expected in recorded.items():
        path = folder / name
        if not path.is_file():
            yield Fault(str(path), f"missing; {CHECKSUMS} names it")
        elif path.suffix == ".json" and sha256(path) != expected:
            yield Fault(str(path), f"not the content that {CHECKSUMS} recorded")
    vocabulary = _vocabulary(folder)
    seen: dict[str, Path] = {}
    for split in _SPLITS:
        for path in find_bare(folder, split):
            try:
                shard = open_bare(path, token_dtype(padded(vocabulary.n_tokens)))
                found = scan(shard, anew=True)
            except UserError as error:
                yield Fault(str(path), str(error).removeprefix(f"{path}: "))
                continue
            if found.max_id >= padded(vocabulary.n_tokens):
                place = TokenStore([shard], "").first_at_least(padded(vocabulary.n_tokens), 0)
                where = f"token id {place[1]} at offset {place[0]}" if place else f"token id {found.max_id}"
                yield Fault(str(path), f"{where} >= vocabulary {padded(vocabulary.n_tokens)} of {vocabulary.name}")
            if found.sha256 in seen:
                yield Fault(str(path), f"the same content as {seen[found.sha256].name}")
            seen[found.sha256] = path
            if recorded and path.name not in recorded:
                yield Fault(str(path), f"{CHECKSUMS} does not name it")
            elif recorded and recorded[path.name] != found.sha256:
                yield Fault(str(path), f"not the content that {CHECKSUMS} recorded")


LAYOUT = Layout("bare", _found_in, _splits, _open, _facts, _verify)
