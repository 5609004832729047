"""Sampling parameters: how the next token is chosen, and when a text ends. Needs no torch."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from danalab.errors import UserError

DEFAULT_TOKENS = 128
"""Tokens that are added by default, if the model's context has the space."""


@dataclass(frozen=True, kw_only=True)
class SamplingParameters:
    """Parameters of one request.

    Raises:
        UserError: a value out of range.
    """

    max_tokens: int | None = None
    """Tokens to add at most; None: `DEFAULT_TOKENS`, or as many as fit in the context."""
    temperature: float = 0.8
    """The logits are divided by it; 0 takes the most likely token."""
    top_k: int = 0
    """Sample among the k most likely tokens; 0: all."""
    top_p: float = 1.0
    """Sample among the most likely tokens that together have at least this probability."""
    seed: int | None = None
    """The same seed gives the same text on every device; None: a random one."""
    stop_ids: Collection[int] = ()
    """Token ids that end the text; they are not part of it."""
    sliding_window: bool = False
    """Continue beyond the context: when it is full, the model rereads its second half. Otherwise an error."""

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 0:
            raise UserError(f"max_tokens must not be negative: got {self.max_tokens}")
        if not 0 <= self.temperature < math.inf or self.top_k < 0 or not 0 < self.top_p <= 1:
            raise UserError(
                "sampling needs a finite temperature >= 0, top_k >= 0 and 0 < top_p <= 1: "
                f"got {self.temperature}, {self.top_k} and {self.top_p}"
            )
        if self.seed is not None and not -(2**63) <= self.seed < 2**63:
            raise UserError(f"seed {self.seed}: must be a 64-bit integer")

    def token_limit(self, prompt_length: int, seq_len: int) -> int:
        """Tokens to add at most after `prompt_length` tokens with a context of `seq_len`.

        Raises:
            UserError: prompt and `max_tokens` exceed the context, without a sliding window.
        """
        if self.max_tokens is None:
            space = DEFAULT_TOKENS if self.sliding_window else seq_len - prompt_length
            wanted = max(1, min(DEFAULT_TOKENS, space))
        else:
            wanted = self.max_tokens
        if prompt_length + wanted > seq_len and not self.sliding_window:
            raise UserError(
                f"a prompt of {prompt_length} tokens and max_tokens {wanted} are {prompt_length + wanted} together, "
                f"more than the model's seq_len {seq_len}; a sliding window goes beyond it"
            )
        return wanted
