"""Answers, and the pieces that they arrive in: what one step of the engine adds."""

from dataclasses import dataclass, field
from typing import Literal

from danalab.inference import Request

FinishReason = Literal["stop", "length", "tool_calls", "cancelled"]


@dataclass(frozen=True)
class TokenText:
    """A token with its bytes and natural logarithm of its probability."""

    id: int
    content: bytes
    logprob: float
    top: tuple[tuple[int, bytes, float], ...] = ()
    """The most likely tokens: (id, bytes, log-probability)."""


@dataclass(frozen=True)
class FunctionCall:
    """A call of one of the request's tools."""

    id: str
    name: str
    arguments: str
    """A JSON object."""


@dataclass(frozen=True)
class Calculation:
    """A calculation that the server carried out while the model wrote."""

    expression: str
    result: str


@dataclass(frozen=True)
class Delta:
    """A piece of an answer."""

    text: str = ""
    tokens: tuple[TokenText, ...] = ()
    """The tokens of `text`, where log-probabilities are asked for."""
    call: FunctionCall | None = None
    calculation: Calculation | None = None
    finish_reason: FinishReason | None = None
    forced: tuple[int, ...] = ()
    """Tokens that the engine takes as the model's next ones."""
    continued: Request | None = None
    """The request that replaces this one in the engine; its tokens continue the answer."""


@dataclass
class Answer:
    """One answer, as far as it is known."""

    text: str = ""
    tokens: list[TokenText] = field(default_factory=list)
    call: FunctionCall | None = None
    calculations: list[Calculation] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    def add(self, delta: Delta) -> None:
        """Append a delta."""
        self.text += delta.text
        self.tokens += delta.tokens
        self.call = delta.call or self.call
        self.calculations += [] if delta.calculation is None else [delta.calculation]
        self.finish_reason = delta.finish_reason

    @property
    def shown(self) -> str:
        """Text and call, for a log."""
        return self.text + ("" if self.call is None else f"{self.call.name}({self.call.arguments})")
