"""The layout "shards" of `danalab data prepare`: a `manifest.json` and the shards that it lists.

The manifest is written last, so a folder that has one is complete.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from danalab.data.dataset import DataLayout, Dataset, Finding, fingerprint_of
from danalab.data.formats.shards import FileName, Shard, ShardEntry, TokenId, TokenStore, read_header, token_dtype
from danalab.data.tokenizers import load_tokenizer
from danalab.errors import UserError
from danalab.files import read_json, sha256, validated, write_json

MANIFEST = "manifest.json"
_FORMAT = "danalab-shards"
_VERSION = 1


def _open(folder: Path, split: str) -> Dataset:
    manifest = Manifest.read(folder)
    store = TokenStore(manifest.open_shards(folder, split), f"{folder} ({split})")
    entries = manifest.splits[split]
    for name, expected in manifest.files.items():  # small; another tokenizer would give wrong text and bits per byte
        if (folder / name).is_file() and sha256(folder / name) != expected:
            raise UserError(
                f"{folder / name}: its hash differs from that in {MANIFEST}; restore it, or prepare the data again"
            )
    return Dataset(
        folder,
        split,
        store,
        vocab_size=manifest.tokenizer.vocab_size,
        eos_id=manifest.tokenizer.eos_id,
        fingerprint=fingerprint_of(manifest.tokenizer.fingerprint, [entry.sha256 for entry in entries]),
        max_ids=[entry.max_id for entry in entries],
        tokenizer_name=manifest.tokenizer.name,
        open_split=partial(_open, folder),
    )


def _splits(folder: Path) -> list[str]:
    return list(Manifest.read(folder).splits)


def _matches(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()


def _facts(folder: Path) -> dict[str, Any]:
    manifest = Manifest.read(folder)
    splits = manifest.splits.items()
    return {
        "source": manifest.source,
        "documents": {split: sum(entry.documents for entry in entries) for split, entries in splits},
        "text_bytes": {split: sum(entry.text_bytes for entry in entries) for split, entries in splits},
    }


def _verify(folder: Path) -> Iterator[Finding]:
    """Compare the tokenizer and each shard's header and hash with the manifest; find shards it does not list."""
    manifest = Manifest.read(folder)
    for name, expected in manifest.files.items():
        path = folder / name
        if not path.is_file():
            yield Finding(str(path), "missing")
        elif sha256(path) != expected:
            yield Finding(str(path), f"content differs from {MANIFEST}'s sha256")
    if (folder / "tokenizer.json").is_file():
        try:
            if load_tokenizer(folder).fingerprint != manifest.tokenizer.fingerprint:
                yield Finding(str(folder / "tokenizer.json"), f"not the tokenizer of {MANIFEST}")
        except UserError as error:
            yield Finding(str(folder / "tokenizer.json"), str(error))
    listed = set()
    for split, entries in manifest.splits.items():
        for entry in entries:
            path = folder / entry.file
            listed.add(entry.file)
            try:
                shard = manifest.open_shard(folder, entry)
                if sha256(path) != entry.sha256:
                    yield Finding(
                        str(path), f"content differs from {MANIFEST}'s sha256 ({_where(shard, entry.max_id)})"
                    )
            except UserError as error:
                yield Finding(str(path), str(error).removeprefix(f"{path}: "))
            except OSError as error:
                yield Finding(str(path), error.strerror or str(error))
        if not entries:
            yield Finding(str(folder), f"the split '{split}' has no shards")
    for path in sorted(folder.glob("*.bin")):
        if path.name not in listed:
            yield Finding(str(path), f"{MANIFEST} does not list this shard")


def _where(shard: Shard, max_id: int) -> str:
    """The first impossible token, if there is one; a flipped bit may also give an ordinary id."""
    found = TokenStore([shard], "").first_at_least(max_id + 1, 0)
    return (
        f"token id {found[1]} at offset {found[0]} is above its largest, {max_id}" if found else "somewhere in its ids"
    )


LAYOUT = DataLayout("shards", _matches, _splits, _open, _verify, _facts)


@dataclass(frozen=True)
class Manifest:
    """The content of `manifest.json`."""

    tokenizer: TokenizerEntry
    source: dict[str, Any]
    """Name, licence, and the settings that selected its documents."""
    splits: dict[str, list[ShardEntry]]
    request: str
    """SHA-256 [hex] of every setting that affects the content: preparing the same again does nothing."""
    danalab: str
    """Version that wrote it."""
    files: dict[FileName, str] = field(default_factory=dict)
    """Other files of the data set (its tokenizer's), with their SHA-256 [hex]."""
    format: str = field(default=_FORMAT)
    version: int = field(default=_VERSION)

    __pydantic_config__ = ConfigDict(extra="forbid")

    def write(self, folder: Path) -> None:
        """Write into the folder, atomically, with a checksum."""
        content = asdict(self)
        write_json(folder / MANIFEST, {**content, "checksum": checksum_of(content)})

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read from the folder.

        Raises:
            UserError: absent, malformed, damaged, or of another version.
        """
        file = folder / MANIFEST
        content = read_json(file)
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise UserError(f"{file}: not the manifest of a data set (format is not {_FORMAT})")
        if content.get("version") != _VERSION:
            raise UserError(f"{file}: version {content.get('version')}, this danalab reads version {_VERSION}")
        checksum = content.pop("checksum", None)  # early manifests have none
        if checksum is not None and checksum != checksum_of(content):
            raise UserError(f"{file}: damaged or edited: its checksum does not match; prepare the data set again")
        manifest = validated(cls, content, file)
        manifest._check_splits(file)
        return manifest

    def _check_splits(self, file: Path) -> None:
        if not self.splits:
            raise UserError(f"{file}: malformed: no splits")
        seen: dict[str, str] = {}
        for split, entries in self.splits.items():
            for entry in entries:
                for key, problem in ((entry.file, "named twice"), (entry.sha256, "the same content as another shard")):
                    if key in seen:
                        raise UserError(
                            f"{file}: {entry.file} ({split}): {problem} ({seen[key]}); its tokens would count twice"
                        )
                    seen[key] = entry.file

    def open_shards(self, folder: Path, split: str) -> list[Shard]:
        """The split's shards, each checked against its header and this manifest (not read through).

        Raises:
            UserError: no such split, or a shard that is missing, truncated, or does not match the manifest.
        """
        if split not in self.splits:
            raise UserError(f"{folder}: no split '{split}'; there are: {', '.join(self.splits)}")
        return [self.open_shard(folder, entry) for entry in self.splits[split]]

    def open_shard(self, folder: Path, entry: ShardEntry) -> Shard:
        """One shard, checked against its header and this manifest (not read through).

        Raises:
            UserError: missing, truncated, or does not match the manifest.
        """
        path = folder / entry.file
        shard, fingerprint = read_header(path)
        if fingerprint != self.tokenizer.fingerprint:
            raise UserError(
                f"{path}: written with another tokenizer (its header says {fingerprint[:12]}, {MANIFEST} says "
                f"{self.tokenizer.name} {self.tokenizer.fingerprint[:12]})"
            )
        if shard.n_tokens != entry.tokens or shard.dtype != token_dtype(self.tokenizer.vocab_size):
            raise UserError(
                f"{path}: {shard.n_tokens} tokens of {shard.dtype.name}, {MANIFEST} says {entry.tokens} of "
                f"{token_dtype(self.tokenizer.vocab_size).name}; prepare the data set again"
            )
        if entry.max_id >= self.tokenizer.vocab_size:
            raise UserError(
                f"{path}: token id {entry.max_id} >= vocab_size {self.tokenizer.vocab_size}; the shard was written "
                f"with another tokenizer ({self.tokenizer.name} expected, see {folder / MANIFEST})"
            )
        return shard


@dataclass(frozen=True)
class TokenizerEntry:
    """The tokenizer of the shards, saved whole in `tokenizer.json` beside the manifest."""

    name: str
    fingerprint: str
    n_tokens: TokenId
    vocab_size: TokenId
    eos_id: TokenId

    __pydantic_config__ = ConfigDict(extra="forbid")


def checksum_of(content: dict[str, Any]) -> str:
    """SHA-256 [hex] of the content of a JSON file, independent of its spacing."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
