"""The layout "shards": `manifest.json` of `danalab data prepare`, written last, and the shards that it lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from danalab.data.dataset import Dataset, fingerprint_of
from danalab.data.formats.shards import MANIFEST, Manifest, Shard, TokenStore
from danalab.data.layout import DataLayout, Finding
from danalab.data.tokenizers import load_tokenizer
from danalab.errors import UserError
from danalab.files import sha256


class Encoding(Protocol):
    """What token ids are."""

    @property
    def name(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def eos_id(self) -> int | None: ...


def dataset_of(
    folder: Path,
    split: str,
    tokenizer: Encoding,
    shards: list[Shard],
    facts: Iterable[Any],
    open_split: Callable[[str], Dataset],
) -> Dataset:
    """A split of token files; `facts`: of each shard, with `max_id` and `sha256`."""
    store, facts = TokenStore(shards, f"{folder} ({split})"), list(facts)
    fingerprint = fingerprint_of(tokenizer.fingerprint, [each.sha256 for each in facts])
    max_ids = [each.max_id for each in facts]
    return Dataset(
        folder, split, store, tokenizer.vocab_size, tokenizer.eos_id, fingerprint, max_ids, tokenizer.name, open_split
    )


def first_at_least(shard: Shard, limit: int) -> str:
    """The first id of at least `limit`; "" if there is none."""
    first = TokenStore([shard], "").first_at_least(limit, 0)
    return f"token id {first[1]} at offset {first[0]}" if first else ""


def _open_shards(folder: Path, split: str) -> Dataset:
    manifest = Manifest.read(folder)
    shards = manifest.open_shards(folder, split)
    for name, expected in manifest.files.items():  # small; another tokenizer would give wrong text and bits per byte
        if (folder / name).is_file() and sha256(folder / name) != expected:
            raise UserError(f"{folder / name}: its hash differs from that in {MANIFEST}; restore it, or prepare again")
    return dataset_of(folder, split, manifest.tokenizer, shards, manifest.splits[split], partial(_open_shards, folder))


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
    yield from compare_hashes(folder, manifest.files, (), f"content differs from {MANIFEST}'s sha256", "missing")
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
                    first = first_at_least(shard, entry.max_id + 1)
                    where = f"{first} is above its largest, {entry.max_id}" if first else "somewhere in its ids"
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


def compare_hashes(
    folder: Path, hashes: Mapping[str, str], tokens: Iterable[Path], differs: str, missing: str
) -> Iterator[Finding]:
    """Findings for recorded files that are absent, and for those, `tokens` apart, that have another hash."""
    names = {path.name for path in tokens}
    for name, expected in hashes.items():
        path = folder / name
        if not path.is_file():
            yield Finding(str(path), missing)
        elif name not in names and sha256(path) != expected:
            yield Finding(str(path), differs)


SHARDS = DataLayout(
    "shards",
    lambda folder: (folder / MANIFEST).is_file(),
    lambda folder: list(Manifest.read(folder).splits),
    _open_shards,
    _verify_shards,
    _facts_of_shards,
)
