"""Several documents in one row, each by itself: attention sees its own document only, and positions start anew.

A document begins at each id `start_token` (the end-of-text id before it), so the row [a b | s c d | s e] has documents
0 0 | 1 1 1 | 2 2 and positions 0 1 | 0 1 2 | 0 1. What a model says of a document does not depend on its neighbours.

Shapes: B batch, L length.
"""

from __future__ import annotations

import torch
from torch import Tensor


def documents_of(tokens_BL: Tensor, start_token: int) -> tuple[Tensor, Tensor]:
    """(number of its document in the row, position in it) of each token, int64 [B, L]."""
    starts = tokens_BL == start_token
    place = torch.arange(tokens_BL.shape[1], device=tokens_BL.device)
    begin = torch.where(starts, place, 0).cummax(dim=1).values
    return starts.cumsum(dim=1), place - begin


def document_mask(document_BL: Tensor) -> Tensor:
    """Whether a query may see a key, bool [B, 1, L, L]: causal, within one document."""
    return (document_BL.unsqueeze(2) == document_BL.unsqueeze(1)).tril().unsqueeze(1)
