"""The layout "bare": token files of other software, `train.bin` and `val.bin`, `train_00.bin`, ... (`headers`).

The type of a file's ids is that of its header. Without a header it is that in `tokens.json`; else uint16, or uint32 if
the vocabulary exceeds 65,535, and the ids must look like it. The vocabulary is that of the `tokenizer.json` or
nanoGPT's `meta.pkl` beside the files, else that in `tokens.json`, else GPT-2's for ids of 16 bits. A file is scanned
once for its range and its hash; the result is cached. Bare files carry no checksum: `record` writes the hashes of all
files to `checksums.json`, which later content must match.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import ConfigDict

from danalab.data.dataset import Dataset
from danalab.data.formats import scan_cache
from danalab.data.formats.prepared import compare_hashes, dataset_of, first_at_least
from danalab.data.formats.shards import FileName, Shard, TokenId, reading, token_dtype
from danalab.data.layout import DataLayout, Finding
from danalab.data.tokenizers import META, UNKNOWN, AlphabetTokenizer, load_tokenizer, read_meta
from danalab.data.tokenizers.base import padded
from danalab.errors import UserError
from danalab.files import read_json, read_state, sha256, validated, write_json
from danalab.data.headers import is_stream, open_tokens, split_name

CHECKSUMS, DECLARATION = "checksums.json", "tokens.json"
_BLOCK = 1 << 25
_SAMPLE = 1 << 20  # ids of which the distribution is examined
_MAX_SHARDS = 100_000
_SPLITS = ("train", "val")
_SUFFIXES = (".bin", ".npy")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Scan:
    """The facts of one file."""

    max_id: int
    sha256: str
    min_id: int
    lanes: list[int]
    """Largest id at the positions 0, 1, 2, 3 modulo 4."""
    low_byte: int
    """Largest value of the lowest byte of an id."""
    floats: bool = False
    """Whether ids of 16 bits are spread as the bits of floats."""

    def doubt(self, shard: Shard) -> str | None:
        """Why the ids of a file without a header are of another type, and what to do; None: they may be of this one."""
        first, second, third, _ = self.lanes
        halves = max(first, third), max(self.lanes[1::2])
        small, large = sorted(halves)
        if shard.n_tokens >= _ENOUGH and small < _HIGH_HALVES and (small == 0 < large or large >= _HIGH_HALVES):
            reason = f"every second id is {f'below {_HIGH_HALVES}' if small else 0}"
            dtype = "uint32" if shard.dtype.itemsize == 2 and (third or second) else "uint64"
            if halves[0] == small:
                return f"{reason}, as in big-endian {dtype}; write it with little-endian ids"
            return f"{reason}, as in {dtype}; {_declare(dtype)}"
        # Of ids of 16 bits all low bytes occur, and few high ones. Bytes in pairs have one distribution in both halves.
        paired = self.low_byte < _LOW_BYTES and 2 * (self.max_id >> 8) >= self.low_byte > 0
        if shard.dtype.itemsize == 2 and shard.n_tokens >= _ENOUGH_FOR_BYTES and paired:
            return f"no low byte is above {self.low_byte}, as in uint8, or in another byte order; {_declare('uint8')}"
        if self.floats:
            return f"its ids are spread as float16 or bfloat16 numbers; write integers, or {_declare(shard.dtype.name)}"
        return None


def _spread_as_floats(ids: np.ndarray) -> bool:
    """Whether 16-bit ids look like float16 or bfloat16: a sign bit, then an exponent, which has few common values.

    Numbers of both signs have one distribution of magnitudes; those of one sign are hardly ever so small that an id
    below 1,024 encodes them. Of the ids of texts, a tenth or more are below 1,024, and those with the top bit are rare.
    """
    counts = np.bincount(ids[ids != 0] >> 8, minlength=256).reshape(2, 128)  # [sign, magnitude]
    magnitudes, total = counts.sum(0), counts.sum()
    if total < _ENOUGH_FOR_BYTES or np.sort(magnitudes)[-48:].sum() < 0.9 * total:
        return False
    positive, negative = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    is_symmetric = 0.2 * total < counts[1].sum() < 0.8 * total and np.abs(positive - negative).sum() < 0.4
    return bool(is_symmetric or magnitudes[:4].sum() < 0.01 * total)


def _declare(dtype: str) -> str:
    return f'say what they are in {DECLARATION} beside it: {{"dtype": "{dtype}"}}'


_ENOUGH, _ENOUGH_FOR_BYTES = 16, 2048  # tokens that tell one type from another
_HIGH_HALVES = 16  # x 65,536 ids: more than any tokenizer has
_LOW_BYTES = 224
_FEW_IDS = 1000  # in a thousand tokens of any text, GPT-2 has larger ids


@dataclass(frozen=True)
class Declaration:
    """The content of `tokens.json`, written by hand for files that do not say what they are."""

    dtype: Literal["uint8", "uint16", "int16", "uint32", "int32", "uint64", "int64"] | None = None
    """Type of the ids of files without a header."""
    vocab_size: TokenId | None = None
    eos_id: TokenId | None = None
    tokenizer: Literal["gpt2"] | None = None

    __pydantic_config__ = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class BareEncoding:
    """What the ids of a folder are."""

    name: str
    fingerprint: str
    vocab_size: int
    eos_id: int | None
    n_ids: int
    """All ids are below it."""


# What nanoGPT and the FineWeb scripts of the literature write.
_GPT2 = BareEncoding("gpt2", "gpt2", padded(50_257), 50_256, padded(50_257))


class BareFolder:
    """A folder of bare files: which they are, and what is known of them without reading them."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.files, self.unread = find_raw_files(folder)
        declared = folder / DECLARATION
        self.declared = read_state(Declaration, declared) if os.path.lexists(declared) else Declaration()
        self.recorded = self._read_recorded()
        self.known = self._known_encoding()
        """None: nothing in the folder tells."""
        self._raw = np.dtype(self.declared.dtype or token_dtype(self.known.vocab_size if self.known else 1))
        self._seen: dict[str, Path] = {}

    def _read_recorded(self) -> dict[str, str]:
        file = self.folder / CHECKSUMS
        if not os.path.lexists(file):
            return {}
        hashes = validated(dict[FileName, str], read_json(file), file)
        if not hashes:
            raise UserError(f"{file}: empty; delete it, or record the hashes again")
        return hashes

    def _known_encoding(self) -> BareEncoding | None:
        size, eos_id = self.declared.vocab_size, self.declared.eos_id
        if (self.folder / "tokenizer.json").is_file():
            made = load_tokenizer(self.folder)
            return BareEncoding(made.name, made.fingerprint, made.vocab_size, made.eos_id, made.vocab_size)
        if self.declared.tokenizer == _GPT2.name:
            return _GPT2
        if size is None and os.path.lexists(self.folder / META):
            size, alphabet = read_meta(self.folder / META)
            if alphabet is not None:
                made = AlphabetTokenizer(alphabet)
                return BareEncoding(made.name, made.fingerprint, made.vocab_size, eos_id, size)
        return None if size is None else BareEncoding(UNKNOWN, f"{size} ids", padded(size), eos_id, size)

    def examine(self, path: Path, *, anew: bool = False) -> tuple[Shard, Scan, list[str]]:
        """(shard, its facts, what is wrong with them); UserError: unreadable. `anew` reads it in any case."""
        shard, typed = open_tokens(path, self._raw)
        facts, faults = _scan(shard, anew=anew), []
        if self.recorded and path.name not in self.recorded:
            faults.append(f"{CHECKSUMS} does not list it")
        elif self.recorded and self.recorded[path.name] != facts.sha256:
            faults.append(f"its hash differs from that in {CHECKSUMS}")
        if (same := self._seen.setdefault(facts.sha256, path)) != path:
            faults.append(f"the same content as {same.name}: a shard copied twice?")
        encoding = self.known or (_GPT2 if shard.dtype.itemsize == 2 else None)
        doubt = None if typed or self.declared.dtype else facts.doubt(shard)
        if facts.min_id < 0:
            faults.append(f"token id {facts.min_id} is negative")
        elif encoding is not None and facts.max_id >= encoding.n_ids:
            first = first_at_least(shard, encoding.n_ids) or f"token id {facts.max_id}"
            why = f"; {doubt}" if doubt else ""
            faults.append(f"{first} >= vocab_size {encoding.n_ids} of {encoding.name}{why}")
        elif doubt:
            faults.append(doubt)
        return shard, facts, faults

    def open(self, split: str) -> Dataset:
        """One split; UserError: something is wrong with it."""
        if split not in self.files:
            there = ", ".join(self.files)
            raise UserError(f"{self.folder}: no split '{split}' (no {split}.bin beside it); there are: {there}")
        shards, scans = self._examined(self.files[split])
        encoding = self.known or (_GPT2 if shards[0].dtype.itemsize == 2 else None)
        if encoding is None:  # as for arrays: all ids of the folder
            others = [self._examined(paths)[1] for name, paths in self.files.items() if name != split]
            n_ids = 1 + max(scan.max_id for group in (scans, *others) for scan in group)
            encoding = BareEncoding(UNKNOWN, UNKNOWN, padded(n_ids), self.declared.eos_id, n_ids)
        return dataset_of(self.folder, split, encoding, shards, scans, partial(_open_bare, self.folder))

    def _examined(self, paths: list[Path]) -> tuple[list[Shard], list[Scan]]:
        examined = [self.examine(path) for path in paths]
        for shard, _, faults in examined:
            if faults:
                raise UserError(f"{shard.path}: {faults[0]}")
            if shard.dtype != examined[0][0].dtype:
                first = examined[0][0]
                raise UserError(f"{shard.path}: {shard.dtype.name}, but {first.path.name} is {first.dtype.name}")
        return [shard for shard, _, _ in examined], [scan for _, scan, _ in examined]

    def verify(self) -> Iterator[Finding]:
        """All faults of all files, which are read again."""
        files = [path for paths in self.files.values() for path in paths]
        differs = f"its hash differs from that in {CHECKSUMS}"
        yield from compare_hashes(self.folder, self.recorded, files, differs, f"missing; in {CHECKSUMS}")
        for path in files:
            try:
                faults = self.examine(path, anew=True)[2]
            except UserError as error:
                faults = [str(error).removeprefix(f"{path}: ")]
            yield from (Finding(str(path), fault) for fault in faults)

    def remarks(self) -> Iterator[str]:
        """What is odd and no fault: files that are not read, ids that are hardly GPT-2's."""
        if self.unread:
            yield f"not read: {', '.join(self.unread[:8])}{' ...' * (len(self.unread) > 8)}"
        dataset = self.open(next(iter(self.files)))
        if self.known is None and dataset.tokenizer_name == _GPT2.name and dataset.max_id < _FEW_IDS < dataset.n_tokens:
            files = f"tokenizer.json, {META} or {DECLARATION}"
            yield f"ids up to {dataset.max_id}, which are taken for GPT-2's, as no {files} says what they are"


def _open_bare(folder: Path, split: str) -> Dataset:
    return BareFolder(folder).open(split)


def _scan(shard: Shard, *, anew: bool) -> Scan:
    """Range and hash of a file, from the cache if the file has not changed; `anew` reads it in any case."""
    key = scan_cache.file_key(shard.path, "tokens 3", shard.dtype.str, shard.offset)
    if not anew and (known := scan_cache.load_facts(Scan, key)) is not None:
        return known
    _log.info("%s: scanning %d tokens once for their range", shard.path, shard.n_tokens)
    parts, floats = [], False
    with reading(shard.path) as file:
        digest = hashlib.sha256(file.read(shard.offset))
        while block := file.read(_BLOCK):
            digest.update(block)
            ids = np.frombuffer(block, shard.dtype)
            if not parts and shard.dtype.itemsize == 2:
                floats = _spread_as_floats(ids[:_SAMPLE].view("<u2"))
            lanes = [ids[lane::4].max(initial=0) for lane in range(4)]
            parts.append((ids.max(), -int(ids.min()), (ids & 0xFF).max(), *lanes))
    largest, least, low_byte, *lanes = (int(max(column)) for column in zip(*parts, strict=True))
    result = Scan(largest, digest.hexdigest(), -least, lanes, low_byte, floats)
    scan_cache.save_facts(key, result)
    return result


def find_raw_files(folder: Path) -> tuple[dict[str, list[Path]], list[str]]:
    """Token files of each split, and the names of those that are not read.

    A split is `SPLIT.bin`, or `SPLIT_00.bin`, `NAME_SPLIT-00.npy` and so on in numeric order. If no name says
    "train", the files whose names say no split are "train", in the order of their names.
    """
    names = sorted(path for path in folder.iterdir() if not path.name.startswith(".") and path.suffix in _SUFFIXES)
    streams = [path for path in names if is_stream(path)]
    splits = {}
    for split in _SPLITS:
        mine = [path for path in streams if (name := split_name(path.stem)) is not None and name.split == split]
        if mine:
            splits[split] = _in_order(folder, split, mine)
    unnamed = [path for path in streams if split_name(path.stem) is None]
    if "train" not in splits and unnamed:
        splits = {"train": unnamed, **splits}
    firsts = [paths[0] for paths in splits.values()]
    if len({name.prefix for path in firsts if (name := split_name(path.stem)) is not None}) > 1:
        raise UserError(f"{folder}: {' and '.join(path.name for path in firsts)}: of two data sets; move one away")
    used = {path for paths in splits.values() for path in paths}
    return splits, [path.name for path in names if path not in used]


def _in_order(folder: Path, split: str, paths: list[Path]) -> list[Path]:
    """The shards of a split, whose names differ in their numbers alone, in the order of these."""
    numbered: dict[int, Path] = {}
    families = {}
    for path in paths:
        name = split_name(path.stem)
        assert name is not None
        families.setdefault((name.base, path.suffix, name.number is None), path)
        number = int(name.number or 0)
        if number >= _MAX_SHARDS:
            raise UserError(
                f"{path}: {name.number} is a date or a time, not the number of a shard (below {_MAX_SHARDS:,}); "
                f"rename it to {split}.bin, or several to {split}_00.bin, {split}_01.bin, ..."
            )
        if number in numbered and len(families) == 1:
            raise UserError(f"{path}: shard {number} of '{split}' exists twice, also as {numbered[number].name}")
        numbered[number] = path
    if len(families) > 1:
        beside = " and ".join(path.name for path in list(families.values())[:2])
        raise UserError(f"{folder}: {beside}: both can be the split '{split}'; move one away")
    last = max(numbered)
    if absent := sorted(set(range(1, last)) - set(numbered)):
        raise UserError(
            f"{folder}: '{split}' lacks shards {', '.join(map(str, absent[:8]))} (last: {numbered[last].name})"
        )
    return [numbered[number] for number in sorted(numbered)]


def record(folder: Path) -> Path:
    """Write the hash of every token file, and of what says what they are, to `checksums.json`; returns its path."""
    tokens = [path for paths in find_raw_files(folder)[0].values() for path in paths]
    if not tokens:
        raise UserError(f"{folder}: no {' or '.join(f'{split}.bin' for split in _SPLITS)} to record")
    beside = [*sorted(folder.glob("tokenizer*.json")), folder / META, folder / DECLARATION]
    beside += [path.with_suffix(".idx") for path in tokens]
    hashes = {}
    for path in [*tokens, *(path for path in beside if path.is_file())]:
        with reading(path):
            hashes[path.name] = sha256(path)
    write_json(folder / CHECKSUMS, hashes)
    return folder / CHECKSUMS


def _looks_bare(folder: Path) -> bool:
    names = [path for path in folder.iterdir() if not path.name.startswith(".")]
    arrays = sorted(path for path in names if path.suffix == ".npy")
    ends = arrays[:1] + arrays[-1:]  # both, as one may be damaged: arrays of rows then report the flat one
    return any(is_stream(path) for path in names if path.suffix == ".bin") or (bool(ends) and all(map(is_stream, ends)))


BARE = DataLayout(
    "bare",
    _looks_bare,
    lambda folder: list(find_raw_files(folder)[0]),
    _open_bare,
    lambda folder: BareFolder(folder).verify(),
    remarks=lambda folder: BareFolder(folder).remarks(),
)
