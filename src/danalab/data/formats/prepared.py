"""The layout "shards": `manifest.json` of `danalab data prepare`, written last, and the shards that it lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from danalab.data.dataset import Dataset
from danalab.data.formats.shards import CHANGED, MANIFEST, Encoding, Manifest, Shard, ShardEntry
from danalab.data.layout import Layout
from danalab.errors import UserError
from danalab.files import sha256


class Shards(Layout):
    """A folder that `danalab data prepare` wrote."""

    name = "shards"

    def __init__(self, folder: Path):
        self.folder, self.manifest = folder, Manifest.read(folder)
        self.source, splits = self.manifest.source, self.manifest.splits
        self.files = {split: [folder / entry.file for entry in entries] for split, entries in splits.items()}
        self._entries = {folder / entry.file: entry for entries in splits.values() for entry in entries}

    @classmethod
    def matches(cls, folder: Path) -> bool:
        return (folder / MANIFEST).is_file()

    def open_file(self, path: Path) -> Shard:
        return self.manifest.open_shard(self.folder, self._entries[path])

    def encoding(self, shard: Shard) -> Encoding:
        return self.manifest.tokenizer

    def facts(self, shards: Sequence[Shard]) -> list[ShardEntry]:
        return [self._entries[shard.path] for shard in shards]

    def open(self, split: str) -> Dataset:
        for name, reason in self._tokenizer_faults():
            raise UserError(f"{self.folder / name}: {reason}; restore it, or prepare again")
        return super().open(split)

    def _tokenizer_faults(self) -> Iterator[tuple[str, str]]:
        """Its files are small; another tokenizer would give wrong text and bits per byte."""
        for name, expected in self.manifest.files.items():
            if not (self.folder / name).is_file():
                yield name, "missing"
            elif sha256(self.folder / name) != expected:
                yield name, CHANGED

    def faults(self) -> Iterator[tuple[str, str]]:
        """Compare the tokenizer and each shard's hash with the manifest; find shards it does not list."""
        yield from self._tokenizer_faults()
        listed = Counter(path for paths in self.files.values() for path in paths)
        for file, times in listed.items():
            if times > 1:
                yield file.name, f"listed {times} times in {MANIFEST}"
            elif file.is_file() and sha256(file) != self._entries[file].sha256:
                yield file.name, CHANGED
        for path in sorted(self.folder.glob("*.bin")):
            if path not in listed:
                yield path.name, f"{MANIFEST} does not list this shard"
