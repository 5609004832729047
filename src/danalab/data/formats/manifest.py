"""`manifest.json`: the parts of a prepared data set. It is written last, so a folder that has one is complete."""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from danalab.data.formats.shards import FileName, Shard, ShardEntry, TokenId, read_header, token_dtype
from danalab.errors import UserError
from danalab.files import read_json, validated, write_json

MANIFEST = "manifest.json"
_FORMAT = "danalab-shards"
_VERSION = 1


@dataclass(frozen=True)
class TokenizerEntry:
    """The tokenizer of the shards, saved whole in `tokenizer.json` beside the manifest."""

    name: str
    fingerprint: str
    n_tokens: TokenId
    vocab_size: TokenId
    eos_id: TokenId

    __pydantic_config__ = ConfigDict(extra="forbid")


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
    def read(cls, folder: Path) -> "Manifest":
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


def checksum_of(content: dict[str, Any]) -> str:
    """SHA-256 [hex] of the content of a JSON file, independent of its spacing."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
