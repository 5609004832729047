"""Token files without a header: nanoGPT's `train.bin`/`val.bin`, or folders of `train_00.bin`, `train_01.bin`, ...

Little-endian concatenated documents, in GPT-2's ids unless there is a `tokenizer.json` beside them: uint16, or uint32
if the vocabulary exceeds 65,535. A file is scanned once for its largest id and its hash; the result is cached.

Such files carry no checksum. `record` writes the hashes of all files to `checksums.json`, which later content must
match.
"""

import hashlib
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from danalab.data.dataset import DataLayout, Dataset, Finding, fingerprint_of
from danalab.data.formats import scan_cache
from danalab.data.formats.shards import MAGIC, FileName, Shard, TokenStore, reading, token_dtype
from danalab.data.tokenizers import load_tokenizer
from danalab.data.tokenizers.base import padded
from danalab.errors import UserError
from danalab.files import read_json, sha256, validated, write_json

CHECKSUMS = "checksums.json"
_BLOCK = 1 << 25
_MAX_SHARDS = 100_000
_SPLITS = ("train", "val")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Scan:
    """The facts of one file."""

    max_id: int
    sha256: str


@dataclass(frozen=True)
class _Vocabulary:
    """The vocabulary of the ids."""

    name: str
    n_tokens: int
    eos_id: int
    fingerprint: str


_GPT2 = _Vocabulary("gpt2", 50_257, 50_256, "gpt2")  # what nanoGPT and the FineWeb scripts of the literature write


def find_raw_files(folder: Path, split: str) -> list[Path]:
    """`SPLIT.bin`, or `SPLIT_00.bin` (`SPLIT-00.bin`) and so on in numeric order; empty if there are none."""
    single = folder / f"{split}.bin"
    numbered: dict[int, Path] = {}
    for path in sorted(folder.glob(f"{split}[_-]*.bin")):
        if match := re.fullmatch(rf"{split}[_-](\d+)\.bin", path.name):
            number = int(match[1])
            if number >= _MAX_SHARDS:
                raise UserError(
                    f"{path}: {match[1]} is a date or a time, not the number of a shard (below {_MAX_SHARDS:,}); "
                    f"rename it to {split}.bin, or several to {split}_00.bin, {split}_01.bin, ..."
                )
            if number in numbered:
                raise UserError(f"{path}: shard {number} of '{split}' exists twice, also as {numbered[number].name}")
            numbered[number] = path
    if os.path.lexists(single):
        if numbered:
            beside = numbered[min(numbered)].name
            raise UserError(
                f"{folder}: {single.name} and {beside}: both can be the split '{split}'; move one of them away"
            )
        return [single]
    absent = sorted(set(range(max(numbered, default=0))) - set(numbered) - {0}) if numbered else []
    if absent:
        near = numbered[max(numbered)].name
        raise UserError(
            f"{folder}: shards {', '.join(map(str, absent[:8]))} of '{split}' are missing (the last is {near})"
        )
    return [numbered[number] for number in sorted(numbered)]


def open_raw_file(path: Path, dtype: np.dtype) -> Shard:
    """The tokens of a file."""
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
    """Largest id and hash of a file, from the cache if the file has not changed; `anew` reads it in any case."""
    key = scan_cache.file_key(shard.path, "raw", shard.dtype.name)
    if not anew and (known := scan_cache.load_facts(Scan, key)) is not None:
        return known
    _log.info("%s: scanning %d tokens once for their range", shard.path, shard.n_tokens)
    digest, largest = hashlib.sha256(), 0
    with reading(shard.path) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            largest = max(largest, int(np.frombuffer(block, shard.dtype).max()))
    result = Scan(largest, digest.hexdigest())
    scan_cache.save_facts(key, result)
    return result


def _vocabulary(folder: Path) -> _Vocabulary:
    if not (folder / "tokenizer.json").is_file():
        return _GPT2
    tokenizer = load_tokenizer(folder)
    return _Vocabulary(tokenizer.name, tokenizer.n_tokens, tokenizer.eos_id, tokenizer.fingerprint)


def _matches(folder: Path) -> bool:
    return any(
        re.fullmatch(r"(train|val)([_-]\d+)?\.bin", name.name) for name in folder.iterdir() if name.suffix == ".bin"
    )


def _splits(folder: Path) -> list[str]:
    return [split for split in _SPLITS if find_raw_files(folder, split)]


def _open(folder: Path, split: str) -> Dataset:
    files = find_raw_files(folder, split)
    if not files:
        there = ", ".join(_splits(folder))
        raise UserError(f"{folder}: no split '{split}' (no {split}.bin); there are: {there}")
    vocabulary = _vocabulary(folder)
    shards = [open_raw_file(file, token_dtype(padded(vocabulary.n_tokens))) for file in files]
    scans = [scan(shard) for shard in shards]
    recorded = _recorded(folder)
    for shard, facts in zip(shards, scans, strict=True):
        if recorded and recorded.get(shard.path.name) != facts.sha256:
            raise UserError(f"{shard.path}: its hash differs from that in {CHECKSUMS}")
    reject_duplicate_shards([(shard.path, facts.sha256) for shard, facts in zip(shards, scans, strict=True)])
    dataset = Dataset(
        folder,
        split,
        TokenStore(shards, f"{folder} ({split})"),
        vocab_size=padded(vocabulary.n_tokens),
        eos_id=vocabulary.eos_id,
        fingerprint=fingerprint_of(vocabulary.fingerprint, [scan.sha256 for scan in scans]),
        max_ids=[scan.max_id for scan in scans],
        tokenizer_name=vocabulary.name,
        open_split=partial(_open, folder),
    )
    dataset.check_vocab(dataset.vocab_size)
    return dataset


def reject_duplicate_shards(hashes: list[tuple[Path, str]]) -> None:
    """Check that no two shards have the same content, whose tokens would be trained on twice."""
    seen: dict[str, Path] = {}
    for path, digest in hashes:
        if digest in seen:
            raise UserError(f"{path}: the same content as {seen[digest].name}: a shard copied twice?")
        seen[digest] = path


def record(folder: Path) -> Path:
    """Write the hash of every token file to `checksums.json`; returns its path."""
    files = [path for split in _SPLITS for path in find_raw_files(folder, split)]
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
    """File -> SHA-256; empty without a record."""
    file = folder / CHECKSUMS
    if not os.path.lexists(file):
        return {}
    hashes = validated(dict[FileName, str], read_json(file), file)
    if not hashes:
        raise UserError(f"{file}: empty; delete it, or record the hashes again")
    return hashes


def _verify(folder: Path) -> Iterator[Finding]:
    """Check sizes, ids, duplicates and, if recorded, hashes."""
    recorded = _recorded(folder)
    for name, expected in recorded.items():
        path = folder / name
        if not path.is_file():
            yield Finding(str(path), f"missing; {CHECKSUMS} lists it")
        elif path.suffix == ".json" and sha256(path) != expected:
            yield Finding(str(path), f"its hash differs from that in {CHECKSUMS}")
    vocabulary = _vocabulary(folder)
    seen: dict[str, Path] = {}
    for split in _SPLITS:
        for path in find_raw_files(folder, split):
            try:
                shard = open_raw_file(path, token_dtype(padded(vocabulary.n_tokens)))
                facts = scan(shard, anew=True)
            except UserError as error:
                yield Finding(str(path), str(error).removeprefix(f"{path}: "))
                continue
            if facts.max_id >= padded(vocabulary.n_tokens):
                place = TokenStore([shard], "").first_at_least(padded(vocabulary.n_tokens), 0)
                where = f"token id {place[1]} at offset {place[0]}" if place else f"token id {facts.max_id}"
                yield Finding(str(path), f"{where} >= vocabulary {padded(vocabulary.n_tokens)} of {vocabulary.name}")
            if facts.sha256 in seen:
                yield Finding(str(path), f"the same content as {seen[facts.sha256].name}")
            seen[facts.sha256] = path
            if recorded and path.name not in recorded:
                yield Finding(str(path), f"{CHECKSUMS} does not list it")
            elif recorded and recorded[path.name] != facts.sha256:
                yield Finding(str(path), f"its hash differs from that in {CHECKSUMS}")


LAYOUT = DataLayout("bare", _matches, _splits, _open, _verify)
