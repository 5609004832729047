"""Input and output of the engine: sampling parameters, requests, events of tokens, their text, completions.

`RequestState` is a request inside the engine.
"""

from __future__ import annotations

import codecs
import math
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from danalab.errors import UserError

if TYPE_CHECKING:
    from danalab.data.tokenizers import Tokenizer
    from danalab.inference.json_constraint import JsonConstraint

DEFAULT_TOKENS = 128
"""Tokens that are added by default, if the model's context has the space."""

MAX_LOGPROBS = 100
"""Limit on the alternatives that are reported with each token."""

FinishReason = Literal["stop", "length", "cancelled", "error"]
"""stop: an end token, stop token or stop string; length: max_tokens or the context; error: the logits were not finite,
or the constraint allowed no token."""

FAILED = (
    "the model's logits are not finite (it has diverged, or its weights are damaged), or no token is allowed"
)
"""What the finish reason "error" means, for people."""


_RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_tokens": (lambda x: x >= 0, "0 or more"),
    "temperature": (lambda x: 0 <= x < math.inf, "finite and 0 or more"),
    "top_k": (lambda x: x >= 0, "0 or more"),
    "top_p": (lambda x: 0 < x <= 1, "more than 0 and at most 1"),
    "min_p": (lambda x: 0 <= x <= 1, "between 0 and 1"),
    "repetition_penalty": (lambda x: 0 < x < math.inf, "positive and finite"),
    "presence_penalty": (math.isfinite, "finite"),
    "frequency_penalty": (math.isfinite, "finite"),
    "seed": (lambda x: -(2**63) <= x < 2**63, "a 64-bit integer"),
    "stop": (lambda x: not isinstance(x, str) and all(x), "a list of strings that are not empty"),
    "logprobs": (lambda x: 0 <= x <= MAX_LOGPROBS, f"between 0 and {MAX_LOGPROBS}"),
}
"""Parameter -> (whether a value is allowed, what it must be)."""


@dataclass(frozen=True, kw_only=True)
class SamplingParameters:
    """Parameters of one request; UserError: a value out of range.

    The logits are changed in this order: penalties, `logit_bias`, the constraint of the request, temperature, top_k,
    top_p, min_p. The log-probability of a token is that in the distribution that it was drawn from (with temperature 0,
    before the division by the temperature), or the model's own, before all changes, where `logprobs` is given.
    """

    max_tokens: int | None = None
    """Tokens to add at most; None: `DEFAULT_TOKENS`, or as many as fit in the context."""
    temperature: float = 0.8
    """The logits are divided by it; 0 takes the most likely token."""
    top_k: int = 0
    """Sample among the k most likely tokens; 0: all."""
    top_p: float = 1.0
    """Sample among the most likely tokens that together have at least this probability."""
    min_p: float = 0.0
    """Sample among the tokens that have at least this share of the largest probability."""
    repetition_penalty: float = 1.0
    """Positive logits of tokens that occur in the prompt or the text are divided by it, negative ones multiplied."""
    presence_penalty: float = 0.0
    """Is subtracted from the logits of tokens that occur in the text."""
    frequency_penalty: float = 0.0
    """Is subtracted from the logits of tokens once for each time that they occur in the text."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Token id -> what is added to its logit."""
    seed: int | None = None
    """The same seed gives the same text, whatever else the engine computes at the same time; None: a random one."""
    stop: Sequence[str] = ()
    """The text ends before the first of these strings."""
    stop_tokens: Collection[int] = ()
    """Token ids that end the text, in addition to the engine's end tokens."""
    logprobs: int | None = None
    """Report this number of alternatives with each token; None: only the log-probability of the token itself."""

    def __post_init__(self) -> None:
        for name, (is_allowed, expected) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not is_allowed(value):
                raise UserError(f"{name} is {value!r}; it must be {expected}")
        for token, bias in self.logit_bias.items():
            if not math.isfinite(bias):
                raise UserError(f"logit_bias of token {token} is {bias}; it must be finite")

    @property
    def penalised(self) -> bool:
        """Whether logits depend on the tokens so far."""
        return bool(self.repetition_penalty != 1 or self.presence_penalty or self.frequency_penalty)

    def token_limit(self, prompt_length: int, seq_len: int) -> int:
        """Tokens to add at most to `prompt_length`; UserError: more than the context."""
        wanted = self.max_tokens
        if wanted is None:
            wanted = max(1, min(DEFAULT_TOKENS, seq_len - prompt_length))
        if prompt_length + wanted > seq_len:
            raise UserError(
                f"a prompt of {prompt_length} tokens and max_tokens {wanted} are {prompt_length + wanted} together, "
                f"more than the model's seq_len {seq_len}"
            )
        return wanted


@dataclass(frozen=True)
class Request:
    """A prompt to continue."""

    prompt: Sequence[int]
    """Token ids."""
    parameters: SamplingParameters = field(default_factory=SamplingParameters)
    constraint: JsonConstraint | None = None
    """Restricts the next token: anything with `mask()`, bool [n] of allowed ids, and `advance(token)`."""
    prefix_scope: str = ""
    """Cached prefixes are shared among requests of the same scope only."""


class TokenEvent(NamedTuple):
    """One token of one request."""

    request_id: int
    token: int
    """The token, also one that ends the text; -1 where the request failed before one was drawn."""
    logprob: float
    """Logarithm of its probability in the distribution that it was drawn from [nats]."""
    top_logprobs: Sequence[tuple[int, float]]
    """The most likely (token, log-probability), as many as `SamplingParameters.logprobs`."""
    finish_reason: FinishReason | None
    """Why the request ended with this token; None: it goes on."""


@dataclass
class Completion:
    """What one request added to its prompt."""

    tokens: list[int] = field(default_factory=list)
    """Tokens drawn; the last one is the end or stop token if one ended the text. Forced tokens are not among them."""
    logprobs: list[float] = field(default_factory=list)
    """Log-probability of each token [nats]; see `SamplingParameters`."""
    finish_reason: FinishReason | None = None
    top_logprobs: list[Sequence[tuple[int, float]]] = field(default_factory=list)
    """The most likely (token, log-probability) at each token; empty where `logprobs` is None."""


class RequestState:
    """One request inside the engine, with its limit of tokens to draw, and the ids that end it."""

    def __init__(self, number: int, request: Request, limit: int, ends: frozenset[int]):
        parameters = request.parameters
        self.id, self.request, self.parameters = number, request, parameters
        self.limit, self.ends = limit, ends
        self.tokens = [int(token) for token in request.prompt]
        """The text so far, with its prompt."""
        self.computed = 0
        """Tokens of the text whose keys and values, or whose effect on the states, are in the cache."""
        self.blocks: list[int] = []
        self.node: int | str = request.prefix_scope
        self.published = 0
        """Blocks that are published, or were taken from the cache."""
        self.drawn = 0
        self.counts: Counter[int] | None = Counter() if parameters.penalised else None
        """How often each token was drawn."""
        self.seen: set[int] | None = set(request.prompt) if parameters.penalised else None
        self.seed = secrets.randbits(63) if parameters.seed is None else parameters.seed
        changed = parameters.penalised or parameters.logit_bias or request.constraint
        cut = parameters.top_k or parameters.top_p < 1 or parameters.min_p
        self.plain = not (changed or cut) and parameters.logprobs is None
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


class TextStream:
    """The text of tokens that arrive one by one, up to the first stop string.

    A character whose bytes are spread over several tokens comes when it is complete, and text that may be the beginning
    of a stop string when it is clear that it is not. End tokens have no text.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = (), end_tokens: Collection[int] = ()):
        self._tokenizer, self._stop, self._ends = tokenizer, tuple(stop), end_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self.stopped = False
        """Whether a stop string was found; what follows is dropped."""

    def feed(self, token: int) -> str:
        """The text that is certain after one more token, without what was returned before."""
        if token in self._ends:
            return ""
        return self.feed_bytes(self._tokenizer.decode_bytes([token]))

    def feed_bytes(self, data: bytes) -> str:
        """The same for text that is no token's."""
        return self._release(self._decoder.decode(data))

    def finish(self) -> str:
        """The rest of the text: no token follows."""
        text = self._release(self._decoder.decode(b"", final=True)) + ("" if self.stopped else self._held)
        self._held = ""
        return text

    def _release(self, text: str) -> str:
        if self.stopped:
            return ""
        text = self._held + text
        starts = [at for stop in self._stop if (at := text.find(stop)) >= 0]
        if starts:
            self.stopped, self._held = True, ""
            return text[: min(starts)]
        # A text that was searched before is searched again only where a stop string may have begun.
        held = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


def _overlap(text: str, stop: str) -> int:
    """Characters at the end of `text` that are the beginning of `stop`."""
    return next(
        (size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0
    )
