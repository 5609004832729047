"""The facts of a data set, as plain values for printing."""

from pathlib import Path
from typing import Any

from danalab.data.open import open_dataset, require_layout


def describe(path: str | Path) -> dict[str, Any]:
    """The facts of a data set: path, layout, source, tokenizer, vocab_size, eos_id, and for each split its tokens,
    shards, documents, text_bytes, bytes_per_token, max_id and fingerprint (None if the layout does not record it).

    Raises:
        UserError: no data set there, or one that does not match its manifest.
    """
    folder = Path(path)
    layout = require_layout(folder)
    opened = {name: open_dataset(folder, name) for name in layout.splits(folder)}
    facts = layout.facts(folder)
    splits: dict[str, Any] = {}
    for name, dataset in opened.items():
        text_bytes = facts["text_bytes"].get(name)
        splits[name] = {
            "tokens": dataset.n_tokens,
            "shards": dataset.n_files,
            "documents": facts["documents"].get(name),
            "text_bytes": text_bytes,
            "bytes_per_token": text_bytes / max(dataset.n_tokens, 1) if text_bytes is not None else None,
            "max_id": dataset.max_id,
            "fingerprint": dataset.fingerprint,
        }
    first = next(iter(opened.values()))
    return {
        "path": str(folder),
        "layout": layout.name,
        "source": facts["source"],
        "tokenizer": first.tokenizer_name,
        "vocab_size": first.vocab_size,
        "eos_id": first.eos_id,
        "splits": splits,
    }
