"""`manifest.json`: what a prepared data set is made of. Written last, so a folder that has one is complete."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from danalab.data.shards import Shard, ShardEntry, read_header, token_dtype
from danalab.errors import UserError
from danalab.files import read_json, sha256, write_json

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
    format: str = field(default=_FORMAT)
    version: int = field(default=_VERSION)

    def write(self, folder: Path) -> None:
        """Write into the folder, atomically."""
        write_json(folder / NAME, asdict(self))

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read from the folder.

        Raises:
            UserError: absent, malformed, or of another version.
        """
        file = folder / NAME
        content = read_json(file)
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise UserError(f"{file}: not the manifest of a data set (format is not {_FORMAT})")
        if content.get("version") != _VERSION:
            raise UserError(f"{file}: version {content.get('version')}, this danalab reads version {_VERSION}")
        try:
            content["tokenizer"] = TokenizerEntry(**content["tokenizer"])
            content["splits"] = {
                split: [ShardEntry(**entry) for entry in entries] for split, entries in content["splits"].items()
            }
            return cls(**content)
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{file}: malformed: {error}") from error

    def open_shards(self, folder: Path, split: str) -> list[Shard]:
        """The split's shards, each checked against its header and this manifest (not read through).

        Raises:
            UserError: no such split, or a shard that is missing, truncated, or another than the manifest's.
        """
        if split not in self.splits:
            raise UserError(f"{folder}: no split '{split}'; there are: {', '.join(self.splits)}")
        return [self._open(folder, entry) for entry in self.splits[split]]

    def _open(self, folder: Path, entry: ShardEntry) -> Shard:
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

    def verify(self, folder: Path) -> None:
        """Read every shard through and compare its hash.

        Raises:
            UserError: the first shard whose content is not what was written.
        """
        for split, entries in self.splits.items():
            self.open_shards(folder, split)
            for entry in entries:
                if sha256(folder / entry.file) != entry.sha256:
                    raise UserError(f"{folder / entry.file}: content differs from {NAME}'s sha256; prepare it again")
