"""The layout "shards": `manifest.json` of `danalab data prepare`, written last, and the shards that it lists."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from danalab.data.dataset import Dataset, dataset_of
from danalab.data.formats.shards import CHANGED, MANIFEST, Manifest
from danalab.data.layout import CheckOptions, Finding, Layout, Validation, count_tokens
from danalab.data.tokenizers import load_tokenizer
from danalab.errors import UserError
from danalab.files import sha256


class Shards(Layout):
    """A folder that `danalab data prepare` wrote."""

    name = "shards"

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.manifest = Manifest.read(folder)

    @classmethod
    def matches(cls, folder: Path) -> bool:
        return (folder / MANIFEST).is_file()

    def splits(self) -> list[str]:
        return list(self.manifest.splits)

    def open(self, split: str) -> Dataset:
        if split not in self.manifest.splits:
            raise UserError(
                f"{self.folder}: no split '{split}'; there are: {', '.join(self.manifest.splits)}"
            )
        # Small; another tokenizer would give wrong text and bits per byte.
        for name, expected in self.manifest.files.items():
            file = self.folder / name
            if file.is_file() and sha256(file) != expected:
                raise UserError(
                    f"{file}: its hash differs from that in {MANIFEST}; restore it, or prepare again"
                )
        entries = self.manifest.splits[split]
        shards = [self.manifest.open_shard(self.folder, entry) for entry in entries]
        return dataset_of(self.folder, split, self.manifest.tokenizer, shards, entries, self.open)

    def info(self) -> dict[str, Any]:
        splits = self.manifest.splits
        totals = {
            fact: {split: sum(getattr(entry, fact) for entry in entries) for split, entries in splits.items()}
            for fact in ("documents", "text_bytes")
        }
        return {"source": self.manifest.source, **totals}

    def check(self, result: Validation, options: CheckOptions) -> None:
        result.errors += self._faults()
        count_tokens(self, result, options)

    def _faults(self) -> Iterator[Finding]:
        """Compare the tokenizer and each shard's header and hash with the manifest; find shards it does not list."""
        for name, expected in self.manifest.files.items():
            if not (self.folder / name).is_file():
                yield Finding(name, "missing")
            elif sha256(self.folder / name) != expected:
                yield Finding(name, CHANGED)
        if (self.folder / "tokenizer.json").is_file():
            try:
                load_tokenizer(self.folder)
            except UserError as error:
                yield Finding("tokenizer.json", str(error))
        listed = set[str]()
        for split, entries in self.manifest.splits.items():
            if not entries:
                yield Finding(str(self.folder), f"the split '{split}' has no shards")
            for entry in entries:
                path = self.folder / entry.file
                if entry.file in listed:
                    yield Finding(entry.file, f"listed twice in {MANIFEST}")
                listed.add(entry.file)
                try:
                    self.manifest.open_shard(self.folder, entry)
                    if sha256(path) != entry.sha256:
                        yield Finding(entry.file, CHANGED)
                except UserError as error:
                    yield Finding(entry.file, str(error).removeprefix(f"{path}: "))
        for path in sorted(self.folder.glob("*.bin")):
            if path.name not in listed:
                yield Finding(path.name, f"{MANIFEST} does not list this shard")
