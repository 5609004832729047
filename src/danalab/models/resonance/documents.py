"""Document masking for oscillators: each document in a row is convolved separately, starting from rest.

A filter that is reset is not time-invariant, and the FFT does not apply. So documents are cut out of their rows and
grouped by the next power of two of their lengths; each group is padded with zeros at the end, which does not affect the
causal result, and convolved as one batch. Except for the shortest documents, there are fewer zeros than tokens.

Shapes: B rows of T tokens, D channels.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.weak import WeakTensorKeyDictionary

SHORTEST = 32
"""Documents up to this length form one group [tokens]."""

_lengths: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def document_lengths(starts_BT: Tensor) -> list[int]:
    """Tokens of each document, row after row; `starts` from `danalab.models.layers.documents.document_starts`.

    Computed once for all layers, which receive the same tensor: on a GPU it waits for the device.
    """
    found = _lengths.get(starts_BT)
    if found is None:
        place = torch.arange(starts_BT.shape[1], device=starts_BT.device)
        first = (starts_BT == place).flatten().nonzero().flatten()
        ends = torch.cat((first[1:], first.new_tensor([starts_BT.numel()])))
        found = _lengths[starts_BT] = (ends - first).tolist()
    return found


def convolve_apart(u_BTD: Tensor, lengths: list[int], convolve: Callable[[Tensor], Tensor]) -> Tensor:
    """y [B, T, D]: `convolve` ([N, L, D] -> [N, L, D], causal) applied to each document alone."""
    documents = u_BTD.flatten(0, 1).split(lengths)
    outputs = list(documents)
    for group in _groups(lengths):
        padded = pad_sequence([documents[number] for number in group], batch_first=True)
        for number, y in zip(group, convolve(padded).unbind(), strict=True):
            outputs[number] = y[: lengths[number]]
    return torch.cat(outputs).view(u_BTD.shape)


def _groups(lengths: list[int]) -> Iterable[list[int]]:
    """Indices of the documents whose lengths have the same next power of two."""
    found: dict[int, list[int]] = {}
    for number, length in enumerate(lengths):
        found.setdefault((max(length, SHORTEST) - 1).bit_length(), []).append(number)
    return found.values()
