"""`manifest.json`: what a prepared data set is made of. Written last, so a folder that has one is complete."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path, PurePath
from typing import Any

from danalab.data.formats.shards import Shard, ShardEntry, read_header, token_dtype
from danalab.errors import UserError
from danalab.files import read_json, write_json

NAME = "manifest.json"
_FORMAT = "danalab-shards"
_VERSION = 1


@dataclass(frozen=True)
class TokenizerEntry:
    """The tokenizer of the shards; `tokenizer.json` beside the manifest holds it whole."""

    name: str
    fingerprint: str
    n_tokens: int
    vocab_size: int
    eos_id: int


@dataclass(frozen=True)
class Manifest:
    """The content of `manifest.json`."""

    tokenizer: TokenizerEntry
    source: dict[str, Any]
    """Name, licence, and the settings that chose its documents."""
    splits: dict[str, list[ShardEntry]]
    request: str
    """SHA-256 [hex] of everything that decides the content: preparing the same again is no work."""
    danalab: str
    """Version that wrote it."""
    files: dict[str, str] = field(default_factory=dict)
    """Other files of the data set (its tokenizer's), with their SHA-256 [hex]."""
    format: str = field(default=_FORMAT)
    version: int = field(default=_VERSION)

    def write(self, folder: Path) -> None:
        """Write into the folder, atomically, with a checksum of its own."""
        content = asdict(self)
        write_json(folder / NAME, {**content, "checksum": checksum_of(content)})

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read from the folder.

        Raises:
            UserError: absent, malformed, damaged, or of another version.
        """
        file = folder / NAME
        content = read_json(file)
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise UserError(f"{file}: not the manifest of a data set (format is not {_FORMAT})")
        if content.get("version") != _VERSION:
            raise UserError(f"{file}: version {content.get('version')}, this danalab reads version {_VERSION}")
        checksum = content.pop("checksum", None)  # early manifests have none
        if checksum is not None and checksum != checksum_of(content):
            raise UserError(
                f"{file}: damaged or changed by hand: its checksum does not fit; prepare the data set again"
            )
        try:
            content["tokenizer"] = _checked(TokenizerEntry(**content["tokenizer"]))
            content["splits"] = {
                split: [_checked(ShardEntry(**entry)) for entry in entries]
                for split, entries in content["splits"].items()
            }
            manifest = cls(**content)
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{file}: malformed: {error}") from error
        manifest._check_shards(file)
        return manifest

    def _check_shards(self, file: Path) -> None:
        seen: dict[str, str] = {}
        for split, entries in self.splits.items():
            for entry in entries:
                if PurePath(entry.file).name != entry.file:
                    raise UserError(f"{file}: malformed: the shard {entry.file!r} is not a file of this folder")
                for what, label in ((entry.file, "named twice"), (entry.sha256, "the same content as another shard")):
                    if what in seen:
                        raise UserError(
                            f"{file}: {entry.file} ({split}): {label} ({seen[what]}); its tokens would count twice"
                        )
                    seen[what] = entry.file

    def open_shards(self, folder: Path, split: str) -> list[Shard]:
        """The split's shards, each checked against its header and this manifest (not read through).

        Raises:
            UserError: no such split, or a shard that is missing, truncated, or another than the manifest's.
        """
        if split not in self.splits:
            raise UserError(f"{folder}: no split '{split}'; there are: {', '.join(self.splits)}")
        return [self.open_shard(folder, entry) for entry in self.splits[split]]

    def open_shard(self, folder: Path, entry: ShardEntry) -> Shard:
        """One shard, checked against its header and this manifest (not read through).

        Raises:
            UserError: it is missing, truncated, or another than the manifest's.
        """
        path = folder / entry.file
        shard, fingerprint = read_header(path)
        if fingerprint != self.tokenizer.fingerprint:
            raise UserError(
                f"{path}: written with another tokenizer (its header says {fingerprint[:12]}, {NAME} says "
                f"{self.tokenizer.name} {self.tokenizer.fingerprint[:12]})"
            )
        if shard.n_tokens != entry.tokens or shard.dtype != token_dtype(self.tokenizer.vocab_size):
            raise UserError(
                f"{path}: {shard.n_tokens} tokens of {shard.dtype.name}, {NAME} says {entry.tokens} of "
                f"{token_dtype(self.tokenizer.vocab_size).name}; prepare the data set again"
            )
        if entry.max_id >= self.tokenizer.vocab_size:
            raise UserError(
                f"{path}: token id {entry.max_id} >= vocab_size {self.tokenizer.vocab_size}; the shard was written "
                f"with another tokenizer ({self.tokenizer.name} expected, see {folder / NAME})"
            )
        return shard


def checksum_of(content: dict[str, Any]) -> str:
    """SHA-256 [hex] of what a JSON file holds, whatever its spacing."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _checked(entry: Any) -> Any:
    """A dataclass whose fields are all strings or counts, as they should be.

    Raises:
        TypeError: one is not.
    """
    for each in fields(entry):
        value = getattr(entry, each.name)
        if each.type == "str" and not isinstance(value, str):
            raise TypeError(f"{each.name} {value!r} is not text")
        if each.type == "int" and (type(value) is not int or value < 0):
            raise TypeError(f"{each.name} {value!r} is not a count")
    return entry
