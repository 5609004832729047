"""The document boundaries of a token stream, found in one pass over the ids and cached."""

import logging

import numpy as np

from danalab.data.formats import scan_cache
from danalab.data.formats.store import TokenStore
from danalab.errors import UserError

_BLOCK = 1 << 24
_log = logging.getLogger(__name__)


def document_ends(store: TokenStore, eos_id: int, fingerprint: str) -> np.ndarray:
    """The position after each document's end-of-text id, int64 [documents], memory-mapped if cached.

    Tokens after the last end belong to no document.
    """
    key = f"documents-{fingerprint}-{eos_id}.npy"
    ends = scan_cache.load_array(key)
    if ends is None:
        ends = _scan(store, eos_id)
        scan_cache.save_array(key, ends)
    if len(ends) == 0:
        raise UserError(f"{store.name}: no end of a document (id {eos_id}) in it: --packing documents needs them")
    return ends


def _scan(store: TokenStore, eos_id: int) -> np.ndarray:
    _log.info("%s: scanning %d tokens once for the ends of documents", store.name, store.n_tokens)
    found = []
    for start in range(0, store.n_tokens, _BLOCK):
        found.append(np.flatnonzero(store.read(start, _BLOCK) == eos_id) + (start + 1))
    return np.concatenate(found).astype(np.int64) if found else np.empty(0, np.int64)
