"""The layout "shards" of `danalab data prepare`: a `manifest.json` and the shards that it lists.

The manifest is written last, so a folder that has one is complete.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from danalab.data.dataset import DataLayout, Dataset, Finding, fingerprint_of
from danalab.data.formats.manifest import MANIFEST, Manifest
from danalab.data.formats.shards import Shard, TokenStore
from danalab.data.tokenizers import load_tokenizer
from danalab.errors import UserError
from danalab.files import sha256


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
    first = TokenStore([shard], "").first_at_least(max_id + 1, 0)
    return (
        f"token id {first[1]} at offset {first[0]} is above its largest, {max_id}" if first else "somewhere in its ids"
    )


LAYOUT = DataLayout("shards", _matches, _splits, _open, _verify, _facts)
