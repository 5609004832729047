"""One request inside the engine: its tokens, its cache, and what has been drawn."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Sequence as Sized
from typing import TYPE_CHECKING, Any

from danalab.inference.request import Request

if TYPE_CHECKING:
    from danalab.inference.text import TextStream


class Sequence:
    """The state of one request. `tokens` is the window of the text that the model sees."""

    __slots__ = (
        *("id", "request", "parameters", "limit", "ends", "tokens", "computed", "blocks", "node", "published"),
        *("drawn", "counts", "seen", "seed", "plain", "stream", "states", "slot"),
    )

    def __init__(self, number: int, request: Request, limit: int, ends: frozenset[int], seq_len: int):
        """Args: limit: tokens to draw at most. ends: token ids that end the text. seq_len: the model's context."""
        parameters = request.parameters
        self.id, self.request, self.parameters, self.limit, self.ends = number, request, parameters, limit, ends
        self.tokens = [int(token) for token in request.prompt][-seq_len:]
        self.computed = 0
        """Tokens of the window whose keys and values, or whose effect on the states, are in the cache."""
        self.blocks: list[int] = []
        self.node: int | str = request.prefix_scope
        self.published = 0
        """Blocks that are published, or found in the cache."""
        self.drawn = 0
        self.counts: Counter[int] | None = Counter() if parameters.penalised else None
        """How often each token was drawn."""
        self.seen: set[int] | None = set(request.prompt) if parameters.penalised else None
        self.seed = secrets.randbits(63) if parameters.seed is None else parameters.seed
        changed = parameters.penalised or parameters.logit_bias or request.constraint
        reported = parameters.logprobs or parameters.reports_model
        self.plain = not (changed or reported or parameters.top_k or parameters.top_p < 1 or parameters.min_p)
        """Nothing but the temperature changes the logits, and no alternatives are reported."""
        self.stream: TextStream | None = None
        """Looks for stop strings."""
        self.states: Any = None
        """Recurrent states, for the back end."""
        self.slot = -1
        """Row of the back end's tables while the sequence runs."""

    @property
    def pending(self) -> int:
        """Tokens to compute before the next one can be drawn."""
        return len(self.tokens) - self.computed

    def extend(self, tokens: Sized[int], seq_len: int) -> bool:
        """Add tokens; returns whether the window moved, and everything must be computed again."""
        self.tokens.extend(tokens)
        if len(self.tokens) <= seq_len:
            return False
        self.tokens = self.tokens[-max(1, seq_len // 2) :]
        return True
