"""From tokens of the engine to deltas of an answer. Readers run in the engine's thread.

A conversation's tokens are text, or stand between marks:

    text  python_start 12*7 python_end  output_start 84 output_end  text    we calculate; the marks are hidden
    text  python_start {"name": ..., "arguments": ...}                      with tools: the answer ends with a call
"""

import json
import uuid
from dataclasses import replace
from typing import Literal, Protocol

from danalab.chat.assistant.chat_model import ChatModel
from danalab.chat.assistant.deltas import Calculation, Delta, FunctionCall, TokenText
from danalab.chat.assistant.errors import RequestError
from danalab.chat.conversations import ChatFormat
from danalab.chat.tools import call_tool
from danalab.inference import Request, TextStream, TokenConstraint, TokenEvent


class Reader(Protocol):
    """Makes deltas of the tokens of one request."""

    def read(self, event: TokenEvent) -> Delta:
        """The delta of one token.

        Raises:
            RequestError: the engine could not draw one.
        """
        ...


class TextReader:
    """Reads plain text; special tokens have none."""

    def __init__(self, chat_model: ChatModel, request: Request):
        self.chat_model, self.request = chat_model, request
        self._stream = TextStream(chat_model.tokenizer, request.parameters.stop)
        self._specials = frozenset(chat_model.tokenizer.specials.values())
        self._held: list[TokenText] = []
        """Tokens whose text is held back: a part of a character, or the possible beginning of a stop string."""

    def read(self, event: TokenEvent) -> Delta:
        if event.finish_reason == "error":
            reason = "no token can be drawn: the model's logits are not finite, or the schema allows none"
            raise RequestError(500, reason, code="engine_error")
        return self._delta("" if event.token in self._specials else self._add(event), event)

    def _add(self, event: TokenEvent) -> str:
        if self.request.parameters.logprobs is not None:
            self._held.append(self._token_text(event))
        return self._stream.feed(event.token)

    def _delta(self, text: str, event: TokenEvent) -> Delta:
        """Text with the tokens that it consists of, and the end of the answer."""
        if self._stream.stopped:
            return Delta(text, self._release(text), finish_reason="stop")
        if event.finish_reason is None:
            return Delta(text, self._release(text))
        text += self._stream.finish()
        return Delta(text, self._release(text), finish_reason="length" if event.finish_reason == "length" else "stop")

    def _release(self, text: str) -> tuple[TokenText, ...]:
        if not text:
            return ()
        released, self._held = tuple(self._held), []
        return released

    def _token_text(self, event: TokenEvent) -> TokenText:
        decode = self.chat_model.tokenizer.decode_bytes
        top = tuple((token, decode([token]), logprob) for token, logprob in event.top_logprobs)
        return TokenText(event.token, decode([event.token]), event.logprob, top)


class ChatReader(TextReader):
    """Reads the assistant's message of a conversation.

    Args:
        call: constraint of a call; None: the request has no tools that the model may choose to call.
        is_call: whether the answer is a call from its first token on.
    """

    def __init__(
        self, chat_model: ChatModel, request: Request, call: TokenConstraint | None = None, *, is_call: bool = False
    ):
        super().__init__(chat_model, request)
        self._call = call
        self._state: Literal["text", "call", "python", "output"] = "call" if is_call else "text"
        self._format = chat_model.format if isinstance(chat_model.format, ChatFormat) else None
        self._tokens: list[int] = []
        """All tokens of the answer."""
        self._inside: list[int] = []
        """Tokens since the last mark."""

    def read(self, event: TokenEvent) -> Delta:
        self._tokens.append(event.token)
        if self._state == "call":
            return self._read_call(event)
        fmt = self._format
        if fmt is None or event.finish_reason == "error":
            return super().read(event)
        match event.token:
            case fmt.python_start if event.finish_reason is None:
                return self._begin_call() if self._call is not None else self._enter("python")
            case fmt.python_end if self._state == "python" and event.finish_reason is None:
                return self._calculate(fmt)
            case fmt.output_start:
                return self._delta("", event) if event.finish_reason else self._enter("output")
            case fmt.output_end:
                self._state = "text"
                return self._delta("", event)
        if self._state != "text":
            self._inside.append(event.token)
            return self._delta("", event)
        return super().read(event)

    def _enter(self, state: Literal["python", "output"]) -> Delta:
        self._state, self._inside = state, []
        return Delta()

    def _calculate(self, fmt: ChatFormat) -> Delta:
        expression = self.chat_model.tokenizer.decode(self._inside)
        result = call_tool(expression)
        self._state = "text"
        forced = (fmt.output_start, *self.chat_model.tokenizer.encode(result), fmt.output_end)
        return Delta(calculation=Calculation(expression, result), forced=forced)

    def _begin_call(self) -> Delta:
        """From here on the tokens follow the grammar of calls."""
        self._state, self._inside = "call", []
        old = self.request
        left = (old.parameters.max_tokens or 0) - len(self._tokens)
        if left < 1:
            return Delta(finish_reason="length")
        parameters = replace(old.parameters, max_tokens=left, stop=())
        return Delta(
            continued=replace(old, prompt=[*old.prompt, *self._tokens], parameters=parameters, constraint=self._call)
        )

    def _read_call(self, event: TokenEvent) -> Delta:
        if event.finish_reason == "error":
            return super().read(event)
        if event.token not in self._specials:
            self._inside.append(event.token)
        if event.finish_reason is None:
            return Delta()
        try:
            call = json.loads(self.chat_model.tokenizer.decode(self._inside))
        except ValueError:  # cut off by max_tokens
            return Delta(finish_reason="length")
        arguments = json.dumps(call["arguments"], ensure_ascii=False)
        return Delta(call=FunctionCall(f"call_{uuid.uuid4().hex}", call["name"], arguments), finish_reason="tool_calls")
