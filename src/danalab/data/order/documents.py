"""Where the documents of a token stream end: found by one pass over the ids, kept in the user's cache folder."""

from __future__ import annotations

import io
import logging
import os
from pathlib import Path

import numpy as np

from danalab.data.formats.store import TokenStore
from danalab.errors import UserError
from danalab.files import write_atomically

_BLOCK = 1 << 24
_log = logging.getLogger(__name__)


def document_ends(store: TokenStore, eos_id: int, fingerprint: str) -> np.ndarray:
    """The position after each document's end-of-text id, int64 [documents], memory-mapped where it was kept.

    Tokens after the last end belong to no document.

    Raises:
        UserError: the stream has no end-of-text id.
    """
    kept = cache_folder() / f"documents-{fingerprint}-{eos_id}.npy"
    try:
        ends = np.load(kept, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError):
        ends = _scan(store, eos_id)
        _keep(kept, ends)
    if len(ends) == 0:
        raise UserError(f"{store.name}: no document ends (id {eos_id}) in it: --packing documents needs them")
    return ends


def cache_folder() -> Path:
    """Where scans of data are kept: `$XDG_CACHE_HOME/danalab/scans`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "danalab" / "scans"


def _scan(store: TokenStore, eos_id: int) -> np.ndarray:
    _log.info("%s: reading %d tokens through, once, for the ends of documents", store.name, store.n_tokens)
    found = []
    for start in range(0, store.n_tokens, _BLOCK):
        found.append(np.flatnonzero(store.read(start, _BLOCK) == eos_id) + (start + 1))
    return np.concatenate(found).astype(np.int64) if found else np.empty(0, np.int64)


def _keep(path: Path, ends: np.ndarray) -> None:
    content = io.BytesIO()
    np.save(content, ends, allow_pickle=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content.getvalue())
    except OSError as error:
        _log.info("%s: the ends of documents are not kept: %s", path, error)
