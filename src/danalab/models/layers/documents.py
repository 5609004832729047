"""Document masking: several documents in one row, each with attention to itself only and its own positions.

A document begins at each id `start_token` (the end-of-text id before it): in the row [a b | s c d | s e] the tokens'
documents start at 0 0 | 2 2 2 | 5 5, their positions are 0 1 | 0 1 2 | 0 1. The outputs for a document do not depend on
its neighbours.

Shapes: B batch, L length, N heads, K key-value heads, H head dimension.
"""

from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from danalab.models.layers.causal import attend_masked

BLOCK = 256
"""Smallest number of queries in a block."""

MAX_BLOCKS = 16
"""Per row, on accelerators and under compilation, which unrolls them."""


def document_starts(tokens_BL: Tensor, start_token: int) -> Tensor:
    """Place in the row of the first token of each token's document, int64 [B, L]."""
    place = torch.arange(tokens_BL.shape[1], device=tokens_BL.device)
    return torch.where(tokens_BL == start_token, place, 0).cummax(dim=1).values


def document_positions(starts_BL: Tensor) -> Tensor:
    """Position of each token in its document, int64 [B, L]."""
    return torch.arange(starts_BL.shape[1], device=starts_BL.device) - starts_BL


def attend_within_documents(
    q_BNLH: Tensor, k_BKLH: Tensor, v_BKLH: Tensor, starts_BL: Tensor, *, grouped: bool
) -> Tensor:
    """softmax(q k^T / sqrt(H)) v over the earlier tokens of the query's own document, [B, N, L, H].

    By blocks of queries, whose masks are recomputed in the backward pass: a mask for the whole row would have L^2
    entries, and kernels keep a float one for each layer. On CPUs a block's keys begin with its first document.
    """
    length = q_BNLH.shape[2]
    on_host = starts_BL.device.type == "cpu" and not torch.compiler.is_compiling()
    size = BLOCK if on_host else max(BLOCK, -(-length // MAX_BLOCKS))
    if length <= size:
        return _attend(q_BNLH, k_BKLH, v_BKLH, starts_BL, 0, grouped)
    outputs = []
    for first in range(0, length, size):
        last = min(first + size, length)
        # Elsewhere reading the value would wait for the device, or specialise the compiled code to this batch.
        low = int(starts_BL[:, first].min()) if on_host else 0
        queries, keys, values = q_BNLH[:, :, first:last], k_BKLH[:, :, low:last], v_BKLH[:, :, low:last]
        starts = starts_BL[:, first:last] - low
        block = partial(checkpoint, _attend, use_reentrant=False, preserve_rng_state=False)
        outputs.append(block(queries, keys, values, starts, first - low, grouped))
    return torch.cat(outputs, dim=2)


def _attend(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, past: int, grouped: bool) -> Tensor:
    """For queries at places `past`, `past` + 1, ... among the keys; `starts` [B, queries] counts from the first key."""
    key = torch.arange(k.shape[2], device=k.device)
    query = past + torch.arange(q.shape[2], device=q.device).unsqueeze(1)
    mask = (key <= query) & (key >= starts.unsqueeze(2))
    return attend_masked(q, k, v, mask.unsqueeze(1), grouped=grouped)
