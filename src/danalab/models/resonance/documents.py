"""Several documents in one row, each heard by itself, as if the oscillators came to rest where a document begins.

A filter that forgets is not the same at all times, and has no transform. So documents are taken out of their rows;
those whose lengths have the next power of two in common are convolved together, with zeros after the shorter ones,
which nothing before them hears; and all are put back. The shortest ones apart, zeros are fewer than tokens.

Shapes: B rows of T tokens, D channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.weak import WeakTensorKeyDictionary

SHORTEST = 32
"""Tokens: documents up to this length are convolved together."""

_lengths: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def document_lengths(starts_BT: Tensor) -> list[int]:
    """Tokens of each document, row after row; `starts` from `danalab.models.layers.documents.document_starts`.

    Asked once for all layers, which are given the same tensor: on a GPU the answer has to be waited for.
    """
    found = _lengths.get(starts_BT)
    if found is None:
        place = torch.arange(starts_BT.shape[1], device=starts_BT.device)
        first = (starts_BT == place).flatten().nonzero().flatten()
        ends = torch.cat((first[1:], first.new_tensor([starts_BT.numel()])))
        found = _lengths[starts_BT] = (ends - first).tolist()
    return found


def convolve_apart(u_BTD: Tensor, lengths: list[int], convolve: Callable[[Tensor], Tensor]) -> Tensor:
    """y [B, T, D]: what `convolve` ([N, L, D] -> [N, L, D], causal) makes of each document alone.

    Args: lengths: from `document_lengths`.
    """
    documents = u_BTD.flatten(0, 1).split(lengths)
    heard = list(documents)
    for alike in _alike(lengths):
        together = pad_sequence([documents[number] for number in alike], batch_first=True)
        for number, y in zip(alike, convolve(together).unbind(), strict=True):
            heard[number] = y[: lengths[number]]
    return torch.cat(heard).view(u_BTD.shape)


def _alike(lengths: list[int]) -> Iterable[list[int]]:
    """Numbers of the documents whose lengths have the next power of two in common."""
    found: dict[int, list[int]] = {}
    for number, length in enumerate(lengths):
        found.setdefault((max(length, SHORTEST) - 1).bit_length(), []).append(number)
    return found.values()
