"""The decoding state of a model: the number of tokens processed, and one state for each block."""

import torch
from torch import Tensor

from danalab.errors import UserError


class KeyValues:
    """Keys and values of one attention, written in place; memory is allocated on first use, in the data's dtype."""

    def __init__(self, batch: int, max_len: int):
        self.batch, self.max_len, self.length = batch, max_len, 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def append(self, k_BNLH: Tensor, v_BNLH: Tensor) -> tuple[Tensor, Tensor]:
        """Add L positions; returns keys and values of all positions so far (views, no gradient)."""
        if self._keys is None or self._values is None:
            batch, heads, _, dim = k_BNLH.shape
            self._keys = k_BNLH.new_empty(batch, heads, self.max_len, dim)
            self._values = v_BNLH.new_empty(batch, heads, self.max_len, dim)
        end = self.length + k_BNLH.shape[2]
        self._keys[:, :, self.length : end] = k_BNLH.detach()
        self._values[:, :, self.length : end] = v_BNLH.detach()
        self.length = end
        return self._keys[:, :, :end], self._values[:, :, :end]


class ConvState:
    """The last inputs of short convolutions (`danalab.models.layers.short_convolution`)."""

    def __init__(self, batch: int):
        self.batch = batch
        self.last: tuple[Tensor, ...] | None = None
        """The last inputs of each convolution, [B, size - 1, C]."""

    def past(self, inputs: tuple[Tensor, ...], count: int) -> tuple[Tensor, ...]:
        """The `count` vectors before each of `inputs` [B, T, C], zeros before the first; keeps the last ones."""
        before = self.last or tuple(x.new_zeros(x.shape[0], count, x.shape[2]) for x in inputs)
        joined = (torch.cat((old, x.detach()), dim=1) for old, x in zip(before, inputs, strict=True))
        self.last = tuple(x[:, x.shape[1] - count :].clone() for x in joined)
        return before


class OscillatorState(ConvState):
    """The state of one bank of oscillators (`danalab.models.resonance`); its size does not depend on the length."""

    def __init__(self, batch: int):
        super().__init__(batch)
        self.values: Tensor | None = None
        """Complex [B, D, R]; None before the first token."""


class DeltaRuleState(ConvState):
    """The state of one delta-rule layer (`danalab.models.delta_rule`); its size does not depend on the length."""

    def __init__(self, batch: int):
        super().__init__(batch)
        self.matrices: Tensor | None = None
        """[B, H, K, V], one matrix per head; None before the first token."""


State = KeyValues | OscillatorState | DeltaRuleState


class Cache:
    """The decoding state of a model: `hidden(tokens, cache=cache)` continues at `length` and advances it."""

    def __init__(self, batch: int, max_len: int, states: list[State]):
        """Args: batch: sequences; max_len: capacity [tokens]; states: one per block, made by the block's mixer."""
        self.batch, self.max_len, self.states = batch, max_len, states
        self.length = 0

    def check_capacity(self, batch: int, length: int) -> None:
        """Raises `UserError` when `length` more tokens of `batch` sequences do not fit."""
        if batch != self.batch:
            raise UserError(f"the cache was made for a batch of {self.batch}, the tokens have a batch of {batch}")
        if self.length + length > self.max_len:
            raise UserError(
                f"the cache holds {self.max_len} tokens: {self.length} are used and {length} more do not fit; "
                "ask new_cache for a larger max_len"
            )
