"""What a data set holds, as plain values for printing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from danalab.data import manifest as manifests
from danalab.data.bare import find_bare
from danalab.data.dataset import open_dataset
from danalab.data.manifest import Manifest
from danalab.errors import UserError


def describe(path: str | Path, *, verify: bool = False) -> dict[str, Any]:
    """Facts of a data set: path, source, tokenizer, vocab_size, eos_id, and for each split its tokens, shards,
    documents, text_bytes, bytes_per_token, max_id and fingerprint (None where a bare file does not tell).

    Args:
        path: the folder.
        verify: also compare the content of every shard with its hash.

    Raises:
        UserError: no data set there, or one that does not match its manifest.
    """
    folder = Path(path)
    manifest = Manifest.read(folder) if (folder / manifests.NAME).is_file() else None
    if verify:
        if manifest is None:
            raise UserError(f"{folder}: bare files have no hashes to verify against")
        manifest.verify(folder)
    if manifest:
        names = list(manifest.splits)
    else:
        names = [split for split in ("train", "val") if folder.is_dir() and find_bare(folder, split)]
    opened = {name: open_dataset(folder, name) for name in names or ["train"]}
    splits: dict[str, Any] = {}
    for name, dataset in opened.items():
        entries = manifest.splits[name] if manifest else []
        documents = sum(entry.documents for entry in entries) if manifest else None
        text_bytes = sum(entry.text_bytes for entry in entries) if manifest else None
        splits[name] = {
            "tokens": dataset.n_tokens,
            "shards": len(dataset.store.shards),
            "documents": documents,
            "text_bytes": text_bytes,
            "bytes_per_token": text_bytes / max(dataset.n_tokens, 1) if text_bytes is not None else None,
            "max_id": dataset.max_id,
            "fingerprint": dataset.fingerprint,
        }
    first = next(iter(opened.values()))
    return {
        "path": str(folder),
        "source": manifest.source if manifest else None,
        "tokenizer": first.tokenizer_name,
        "vocab_size": first.vocab_size,
        "eos_id": first.eos_id,
        "splits": splits,
    }
