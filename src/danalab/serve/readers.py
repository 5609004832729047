"""From tokens of the engine to an answer, piece by piece. Readers run in the engine's thread.

A conversation's tokens are text, or stand between marks:

    text  python_start 12*7 python_end  output_start 84 output_end  text    we calculate; the marks are hidden
    text  python_start {"name": ..., "arguments": ...}                      with tools: the answer ends with a call
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from danalab.chat.conversations import ChatFormat
from danalab.chat.message_fields import PastCalculation
from danalab.chat.messages import Message, answer_parts
from danalab.chat.tools import Calculation, ToolCaller, put_result
from danalab.inference import Request, TextStream, TokenConstraint, TokenEvent
from danalab.serve.chat_model import ChatModel
from danalab.serve.fields import RequestError

if TYPE_CHECKING:
    from danalab.inference import Engine

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
class Delta:
    """A piece of an answer."""

    text: str = ""
    tokens: tuple[TokenText, ...] = ()
    """The tokens of `text`, where log-probabilities are asked for."""
    call: FunctionCall | None = None
    calculation: Calculation | None = None
    """Carried out while the model writes; the engine takes its `forced` tokens as the model's next ones."""
    finish_reason: FinishReason | None = None
    continued: Request | None = None
    """The request that replaces this one in the engine; its tokens continue the answer."""


@dataclass
class Answer:
    """One answer, as far as it is known."""

    text: str = ""
    tokens: list[TokenText] = field(default_factory=list)
    call: FunctionCall | None = None
    calculations: list[tuple[int, Calculation]] = field(default_factory=list)
    """Each after the number of characters of the text that stand before it."""
    finish_reason: FinishReason | None = None

    def add(self, delta: Delta) -> None:
        """Append a delta."""
        self.text += delta.text
        self.tokens += delta.tokens
        self.call = delta.call or self.call
        if delta.calculation is not None:
            self.calculations.append((len(self.text), delta.calculation))
        self.finish_reason = delta.finish_reason

    @property
    def message(self) -> Message:
        """Text and calculations, as the model is trained on them."""
        past = [PastCalculation(**each) for each in self.calculations_json]
        return Message.of("assistant", answer_parts(self.text, past))

    @property
    def calculations_json(self) -> list[dict[str, Any]]:
        """The calculations as the endpoints give them."""
        return [{"expression": each.expression, "result": each.result, "position": place}
                for place, each in self.calculations]  # fmt: skip

    @property
    def shown(self) -> str:
        """Text and call, for a log."""
        return self.text + ("" if self.call is None else f"{self.call.name}({self.call.arguments})")


def force_result(engine: Engine, number: int, delta: Delta) -> Delta:
    """Put the result of a calculation into the answer; without space in the context the answer ends there."""
    if delta.calculation is None or put_result(engine, number, delta.calculation):
        return delta
    return replace(delta, finish_reason="length")


class AnswerReader(Protocol):
    """Makes deltas of the tokens of one request."""

    def read(self, event: TokenEvent) -> Delta:
        """The delta of one token. Raises RequestError: the engine could not draw one."""
        ...


class TextReader:
    """Reads plain text; special tokens have none."""

    def __init__(self, chat_model: ChatModel, request: Request):
        self.chat_model, self.request, self._constraint = chat_model, request, request.constraint
        self._stream = TextStream(chat_model.tokenizer, request.parameters.stop)
        self._specials = frozenset(chat_model.tokenizer.specials.values())
        self._held: list[TokenText] = []
        """Tokens whose text is held back: a part of a character, or the possible beginning of a stop string."""

    def read(self, event: TokenEvent) -> Delta:
        if event.finish_reason == "error":
            if self._constraint is not None and not self._constraint.mask().any():
                raise RequestError(400, "the JSON schema allows no further text, or is too large", code="schema_error")
            raise RequestError(500, "no token can be drawn: the model's logits are not finite", code="engine_error")
        if event.token in self._specials:
            return self._delta("", event)
        if self.request.parameters.logprobs is not None:
            self._held.append(self._token_text(event))
        return self._delta(self._stream.feed(event.token), event)

    def _delta(self, text: str, event: TokenEvent) -> Delta:
        """Text with the tokens that it consists of, and the end of the answer."""
        reason: FinishReason | None = None
        if self._stream.stopped:
            reason = "stop"
        elif event.finish_reason is not None:
            reason = "length" if event.finish_reason == "length" else "stop"
            text += self._stream.finish()
        tokens: tuple[TokenText, ...] = ()
        if text:
            tokens, self._held = tuple(self._held), []
        return Delta(text, tokens, finish_reason=reason)

    def _token_text(self, event: TokenEvent) -> TokenText:
        decode = self.chat_model.tokenizer.decode_bytes
        top = tuple((token, decode([token]), logprob) for token, logprob in event.top_logprobs)
        return TokenText(event.token, decode([event.token]), event.logprob, top)


class ChatReader(TextReader):
    """The assistant's message of a conversation, a call from its first token (`is_call`) or by choice, under `call`."""

    def __init__(
        self, chat_model: ChatModel, request: Request, call: TokenConstraint | None = None, *, is_call: bool = False
    ):
        super().__init__(chat_model, request)
        self._call, self._is_call = call, is_call
        self._caller = ToolCaller(chat_model.format) if isinstance(chat_model.format, ChatFormat) else None
        self._begins_call = chat_model.format.python_start if isinstance(chat_model.format, ChatFormat) else None
        self._tokens: list[int] = []  # all tokens of the answer up to a call
        self._arguments: list[int] = []  # tokens of the call

    def read(self, event: TokenEvent) -> Delta:
        if event.finish_reason == "error" or self._caller is None:
            return super().read(event)
        if self._is_call:
            return self._read_call(event)
        self._tokens.append(event.token)
        if event.finish_reason is None and event.token == self._begins_call and self._call is not None:
            return self._begin_call(self._call)
        before = self._caller.state
        calculation = self._caller.feed(event.token) if event.finish_reason is None else None
        if calculation is not None:
            return Delta(calculation=calculation)
        return super().read(event) if before == self._caller.state == "text" else self._delta("", event)

    def _begin_call(self, constraint: TokenConstraint) -> Delta:
        """From here on the tokens follow the grammar of calls."""
        self._is_call, self._constraint = True, constraint
        old = self.request
        left = (old.parameters.max_tokens or 0) - len(self._tokens)
        if left < 1:
            return Delta(finish_reason="length")
        parameters = replace(old.parameters, max_tokens=left, stop=())
        prompt = [*old.prompt, *self._tokens]
        return Delta(continued=replace(old, prompt=prompt, parameters=parameters, constraint=constraint))

    def _read_call(self, event: TokenEvent) -> Delta:
        if event.token not in self._specials:
            self._arguments.append(event.token)
        if event.finish_reason is None:
            return Delta()
        try:
            call = json.loads(self.chat_model.tokenizer.decode(self._arguments))
        except ValueError:  # cut off by max_tokens
            return Delta(finish_reason="length")
        arguments = json.dumps(call["arguments"], ensure_ascii=False)
        return Delta(call=FunctionCall(f"call_{uuid.uuid4().hex}", call["name"], arguments), finish_reason="tool_calls")
