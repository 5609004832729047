"""The two layouts of token files, `.bin`: shards with a manifest, and bare files.

    shards   `manifest.json` of `danalab data prepare`, written last, and the shards that it lists
    bare     nanoGPT's `train.bin` and `val.bin`, or `train_00.bin`, `train_01.bin`, ...; no header

Bare files are little-endian concatenated documents, in GPT-2's ids unless there is a `tokenizer.json` beside them:
uint16, or uint32 if the vocabulary exceeds 65,535. A file is scanned once for its largest id and its hash; the result
is cached. They carry no checksum: `record` writes the hashes of all files to `checksums.json`, which later content must
match.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from danalab.data.dataset import DataLayout, Dataset, Finding, fingerprint_of
from danalab.data.formats import scan_cache
from danalab.data.formats.shards import (
    MAGIC,
    MANIFEST,
    FileName,
    Manifest,
    Shard,
    TokenizerEntry,
    TokenStore,
    reading,
    token_dtype,
)
from danalab.data.tokenizers import load_tokenizer
from danalab.data.tokenizers.base import padded
from danalab.errors import UserError
from danalab.files import read_json, sha256, validated, write_json

CHECKSUMS = "checksums.json"
_BLOCK = 1 << 25
_MAX_SHARDS = 100_000
_SPLITS = ("train", "val")
_log = logging.getLogger(__name__)


def _dataset(
    folder: Path,
    split: str,
    tokenizer: TokenizerEntry,
    shards: list[Shard],
    facts: Iterable[Any],
    open_split: Callable[[str], Dataset],
) -> Dataset:
    """`facts`: of each shard, with `max_id` and `sha256`."""
    store, facts = TokenStore(shards, f"{folder} ({split})"), list(facts)
    fingerprint = fingerprint_of(tokenizer.fingerprint, [each.sha256 for each in facts])
    max_ids = [each.max_id for each in facts]
    return Dataset(
        folder, split, store, tokenizer.vocab_size, tokenizer.eos_id, fingerprint, max_ids, tokenizer.name, open_split
    )


def _place_of(shard: Shard, limit: int) -> str:
    """The first id of at least `limit`; "" if there is none."""
    first = TokenStore([shard], "").first_at_least(limit, 0)
    return f"token id {first[1]} at offset {first[0]}" if first else ""


# ---- shards ----


def _open_shards(folder: Path, split: str) -> Dataset:
    manifest = Manifest.read(folder)
    shards = manifest.open_shards(folder, split)
    for name, expected in manifest.files.items():  # small; another tokenizer would give wrong text and bits per byte
        if (folder / name).is_file() and sha256(folder / name) != expected:
            raise UserError(f"{folder / name}: its hash differs from that in {MANIFEST}; restore it, or prepare again")
    return _dataset(folder, split, manifest.tokenizer, shards, manifest.splits[split], partial(_open_shards, folder))


def _facts_of_shards(folder: Path) -> dict[str, Any]:
    manifest = Manifest.read(folder)
    totals = {
        name: {split: sum(getattr(e, name) for e in entries) for split, entries in manifest.splits.items()}
        for name in ("documents", "text_bytes")
    }
    return {"source": manifest.source, **totals}


def _verify_shards(folder: Path) -> Iterator[Finding]:
    """Compare the tokenizer and each shard's header and hash with the manifest; find shards it does not list."""
    manifest = Manifest.read(folder)
    yield from _compare(folder, manifest.files, f"content differs from {MANIFEST}'s sha256", "missing")
    if (folder / "tokenizer.json").is_file():
        try:
            if load_tokenizer(folder).fingerprint != manifest.tokenizer.fingerprint:
                yield Finding(str(folder / "tokenizer.json"), f"not the tokenizer of {MANIFEST}")
        except UserError as error:
            yield Finding(str(folder / "tokenizer.json"), str(error))
    for split, entries in manifest.splits.items():
        for entry in entries:
            path = folder / entry.file
            try:
                shard = manifest.open_shard(folder, entry)
                if sha256(path) != entry.sha256:
                    # A flipped bit may also give an ordinary id.
                    place = _place_of(shard, entry.max_id + 1)
                    where = f"{place} is above its largest, {entry.max_id}" if place else "somewhere in its ids"
                    yield Finding(str(path), f"content differs from {MANIFEST}'s sha256 ({where})")
            except UserError as error:
                yield Finding(str(path), str(error).removeprefix(f"{path}: "))
            except OSError as error:
                yield Finding(str(path), error.strerror or str(error))
        if not entries:
            yield Finding(str(folder), f"the split '{split}' has no shards")
    listed = {entry.file for entries in manifest.splits.values() for entry in entries}
    for path in sorted(folder.glob("*.bin")):
        if path.name not in listed:
            yield Finding(str(path), f"{MANIFEST} does not list this shard")


def _compare(folder: Path, hashes: Mapping[str, str], differs: str, missing: str) -> Iterator[Finding]:
    """Findings for recorded files that are absent, and for those, token files apart, that have another hash."""
    for name, expected in hashes.items():
        path = folder / name
        if not path.is_file():
            yield Finding(str(path), missing)
        elif path.suffix != ".bin" and sha256(path) != expected:
            yield Finding(str(path), differs)


SHARDS = DataLayout(
    "shards",
    lambda folder: (folder / MANIFEST).is_file(),
    lambda folder: list(Manifest.read(folder).splits),
    _open_shards,
    _verify_shards,
    _facts_of_shards,
)


# ---- bare files ----


@dataclass(frozen=True)
class Scan:
    """The facts of one file."""

    max_id: int
    sha256: str


# What nanoGPT and the FineWeb scripts of the literature write.
_GPT2 = TokenizerEntry("gpt2", "gpt2", 50_257, padded(50_257), 50_256)


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
            raise UserError(f"{folder}: {single.name} and {beside}: both can be the split '{split}'; move one away")
        return [single]
    last = max(numbered, default=0)
    if absent := sorted(set(range(1, last)) - set(numbered)):
        raise UserError(
            f"{folder}: '{split}' lacks shards {', '.join(map(str, absent[:8]))} (last: {numbered[last].name})"
        )
    return [numbered[number] for number in sorted(numbered)]


def _open_file(path: Path, dtype: np.dtype) -> Shard:
    with reading(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            raise UserError(f"{path}: empty")
        if size % dtype.itemsize:
            raise UserError(f"{path}: {size} bytes is not a whole number of {dtype} tokens: truncated, or another type")
        if file.read(len(MAGIC)) == MAGIC:
            raise UserError(
                f"{path}: a shard of danalab without its manifest.json (preparation unfinished?): "
                "run danalab data prepare again with the same flags"
            )
    return Shard(path, 0, dtype, size // dtype.itemsize)


def _scan(shard: Shard, *, anew: bool) -> Scan:
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


def _examine(
    path: Path, tokenizer: TokenizerEntry, recorded: Mapping[str, str], seen: dict[str, Path], *, anew: bool
) -> tuple[Shard, Scan, list[str]]:
    """(shard, its facts, what is wrong with them); UserError: unreadable. `seen`: the files so far by their hash."""
    shard = _open_file(path, token_dtype(tokenizer.vocab_size))
    facts, faults = _scan(shard, anew=anew), []
    if recorded and path.name not in recorded:
        faults.append(f"{CHECKSUMS} does not list it")
    elif recorded and recorded[path.name] != facts.sha256:
        faults.append(f"its hash differs from that in {CHECKSUMS}")
    if (same := seen.setdefault(facts.sha256, path)) != path:
        faults.append(f"the same content as {same.name}: a shard copied twice?")
    if facts.max_id >= tokenizer.vocab_size:
        place = _place_of(shard, tokenizer.vocab_size) or f"token id {facts.max_id}"
        faults.append(f"{place} >= vocab_size {tokenizer.vocab_size} of {tokenizer.name}")
    return shard, facts, faults


def _open_bare(folder: Path, split: str) -> Dataset:
    files = find_raw_files(folder, split)
    if not files:
        raise UserError(f"{folder}: no split '{split}' (no {split}.bin); there are: {', '.join(_bare_splits(folder))}")
    tokenizer, recorded = _tokenizer(folder), _recorded(folder)
    seen: dict[str, Path] = {}
    examined = [_examine(path, tokenizer, recorded, seen, anew=False) for path in files]
    for shard, _, faults in examined:
        if faults:
            raise UserError(f"{shard.path}: {faults[0]}")
    shards, facts, _ = zip(*examined, strict=True)
    return _dataset(folder, split, tokenizer, list(shards), facts, partial(_open_bare, folder))


def _verify_bare(folder: Path) -> Iterator[Finding]:
    tokenizer, recorded = _tokenizer(folder), _recorded(folder)
    yield from _compare(folder, recorded, f"its hash differs from that in {CHECKSUMS}", f"missing; in {CHECKSUMS}")
    seen: dict[str, Path] = {}
    for path in (path for split in _SPLITS for path in find_raw_files(folder, split)):
        try:
            faults = _examine(path, tokenizer, recorded, seen, anew=True)[2]
        except UserError as error:
            faults = [str(error).removeprefix(f"{path}: ")]
        yield from (Finding(str(path), fault) for fault in faults)


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
    file = folder / CHECKSUMS
    if not os.path.lexists(file):
        return {}
    hashes = validated(dict[FileName, str], read_json(file), file)
    if not hashes:
        raise UserError(f"{file}: empty; delete it, or record the hashes again")
    return hashes


def _tokenizer(folder: Path) -> TokenizerEntry:
    return TokenizerEntry.of(load_tokenizer(folder)) if (folder / "tokenizer.json").is_file() else _GPT2


def _bare_splits(folder: Path) -> list[str]:
    return [split for split in _SPLITS if find_raw_files(folder, split)]


def _looks_bare(folder: Path) -> bool:
    return any(re.fullmatch(r"(train|val)([_-]\d+)?\.bin", path.name) for path in folder.iterdir())


BARE = DataLayout("bare", _looks_bare, _bare_splits, _open_bare, _verify_bare)
