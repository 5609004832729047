"""The decoding state of a model: the number of tokens processed, and one state for each block."""

import torch
from torch import Tensor


class KeyValues:
    """Keys and values of one attention, written in place; memory is allocated on first use, in the data's dtype."""

    def __init__(self, max_len: int):
        self.max_len, self.length = max_len, 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def append(self, k_BNLH: Tensor, v_BNLH: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Add L positions; returns keys and values of all S positions so far (views, no gradient), and a mask.

        The mask [L, S] says which keys a query sees; None: causal attention if S = L, all keys if L = 1.
        """
        if self._keys is None or self._values is None:
            batch, heads, _, dim = k_BNLH.shape
            self._keys = k_BNLH.new_empty(batch, heads, self.max_len, dim)
            self._values = v_BNLH.new_empty(batch, heads, self.max_len, dim)
        past, length = self.length, k_BNLH.shape[2]
        end = past + length
        self._keys[:, :, past:end] = k_BNLH.detach()
        self._values[:, :, past:end] = v_BNLH.detach()
        self.length = end
        return (
            self._keys[:, :, :end],
            self._values[:, :, :end],
            continuation_mask(past, length, k_BNLH.device),
        )


def continuation_mask(past: int, length: int, device: torch.device) -> Tensor | None:
    """Keys that each of `length` queries sees after `past` earlier positions, bool [length, past + length].

    None where no mask is needed: without earlier positions (causal attention), or for one query, which sees all keys.
    """
    if past == 0 or length == 1:
        return None
    return torch.ones(length, past + length, dtype=torch.bool, device=device).tril(past)


class RecurrentState:
    """The last inputs of short convolutions, and one tensor of constant size that is replaced at each token."""

    def __init__(self):
        self.memory: Tensor | None = None
        """Of oscillators complex [B, D, R], of the delta rule [B, H, K, V]; None before the first token, or without."""
        self.last: tuple[Tensor, ...] | None = None
        """The last inputs of each convolution, [B, size - 1, C]."""

    def past(self, inputs: tuple[Tensor, ...], count: int) -> tuple[Tensor, ...]:
        """The `count` vectors before each of `inputs` [B, T, C], zeros before the first; keeps the last ones."""
        before = self.last or tuple(x.new_zeros(x.shape[0], count, x.shape[2]) for x in inputs)
        joined = (torch.cat((old, x.detach()), dim=1) for old, x in zip(before, inputs, strict=True))
        self.last = tuple(x[:, x.shape[1] - count :].clone() for x in joined)
        return before

    def tensors(self) -> tuple[Tensor, ...] | None:
        """The memory where there is one, then the last inputs, the sequences first; None before the first token."""
        parts = (*(() if self.memory is None else (self.memory,)), *(self.last or ()))
        return parts or None

    def load(self, tensors: tuple[Tensor, ...]) -> None:
        """Continue from these `tensors`, as `tensors()` returns them; they are not modified."""
        self.memory = tensors[0]
        self.last = tensors[1:] or None


State = KeyValues | RecurrentState


class Cache:
    """The decoding state of a model: `hidden(tokens, cache=cache)` continues at `length` and advances it."""

    def __init__(self, states: list[State]):
        self.states = states
        """One per block, made by the block's mixer."""
        self.length = 0
        """Tokens processed of each sequence; of the longest where lengths differ."""

    def positions(self, length: int, device: torch.device) -> Tensor | None:
        """Positions of the next `length` tokens of each sequence, [B, L]; None: `length` from `self.length` for all."""
        return None

    def advance(self, length: int) -> None:
        """Count `length` more tokens of each sequence."""
        self.length += length
