"""What goes into the engine and what comes out: requests, events of tokens, completions. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from danalab.inference.parameters import SamplingParameters

FinishReason = Literal["stop", "length", "cancelled", "error"]
"""stop: an end token, stop token or stop string; length: max_tokens or the context; error: the logits were not finite,
or the constraint allowed no token."""

FAILED = "the model's logits are not finite (it has diverged, or its weights are damaged), or no token is allowed"
"""What the finish reason "error" means, for people."""


class TokenConstraint(Protocol):
    """Restricts the next token of one request, for example to a grammar (`danalab.inference.constraints`)."""

    def mask(self) -> Any:
        """Allowed tokens: bool [n], an array or a tensor; ids from n on are not allowed."""
        ...

    def advance(self, token: int) -> None:
        """Take note of the token that was drawn."""
        ...


@dataclass(frozen=True)
class Request:
    """A prompt to continue."""

    prompt: Sequence[int]
    """Token ids."""
    parameters: SamplingParameters = field(default_factory=SamplingParameters)
    constraint: TokenConstraint | None = None
    prefix_scope: str = ""
    """Cached prefixes are shared among requests of the same scope only; queues are served scope by scope in turn."""


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
