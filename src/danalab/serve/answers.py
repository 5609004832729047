"""Tokens of the engine become answers, piece by piece, and these become OpenAI's JSON.

    TokenEvent -> reader -> Delta, Delta, ... -> Answer -> writer -> choice, or chunk of a stream

Readers run in the engine's thread. A conversation's tokens are text, or stand between marks:

    text  python_start 12*7 python_end  output_start 84 output_end  text    read as <<12*7=84>>; we calculate
    text  python_start {"name": ..., "arguments": ...}                      with tools: the answer ends with a call
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from danalab.chat.marks import CallFollower, ChatFormat
from danalab.inference.request import Request, TextStream, TokenConstraint, TokenEvent
from danalab.serve.errors import RequestError

if TYPE_CHECKING:
    from danalab.chat.formats import PlainFormat, TemplateFormat
    from danalab.data.tokenizers import Tokenizer
    from danalab.inference.engine import Engine

JsonObject = dict[str, Any]
FinishReason = Literal["stop", "length", "tool_calls", "cancelled"]


class TokenText(NamedTuple):
    """A token with its bytes and the natural logarithm of its probability."""

    content: bytes
    logprob: float | None
    """None: the first of a prompt, which nothing predicts."""
    top: tuple[tuple[bytes, float], ...] = ()
    """The most likely tokens: (bytes, log-probability)."""

    @classmethod
    def of(
        cls, tokenizer: Tokenizer, token: int, logprob: float | None, top: Sequence[tuple[int, float]]
    ) -> TokenText:
        """A token with its text, and those of the most likely ones."""
        decode = tokenizer.decode_bytes
        return cls(decode([token]), logprob, tuple((decode([each]), value) for each, value in top))


@dataclass(frozen=True)
class FunctionCall:
    """A call of one of the request's tools."""

    id: str
    name: str
    arguments: str
    """A JSON object."""

    def as_dict(self) -> JsonObject:
        """OpenAI's JSON."""
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


@dataclass(frozen=True)
class Delta:
    """A piece of an answer."""

    text: str = ""
    tokens: tuple[TokenText, ...] = ()
    """The tokens of `text`, where log-probabilities are asked for."""
    call: FunctionCall | None = None
    finish_reason: FinishReason | None = None
    continued: Request | None = None
    """The request that replaces this one in the engine; its tokens continue the answer."""


@dataclass
class Answer:
    """One answer, as far as it is known."""

    text: str = ""
    tokens: list[TokenText] = field(default_factory=list)
    call: FunctionCall | None = None
    finish_reason: FinishReason | None = None

    def add(self, delta: Delta) -> None:
        """Append a delta."""
        self.text += delta.text
        self.tokens += delta.tokens
        self.call = delta.call or self.call
        self.finish_reason = delta.finish_reason


class TextReader:
    """Reads plain text, after an `echo` of the prompt with its tokens; special tokens have no text."""

    def __init__(
        self, tokenizer: Tokenizer, request: Request, echo: str = "", scored: Sequence[TokenText] = ()
    ):
        self.tokenizer, self.request, self._constraint = tokenizer, request, request.constraint
        self._stream = TextStream(tokenizer, request.parameters.stop)
        self._specials = frozenset(tokenizer.specials.values())
        self._echo = echo
        self._held: list[TokenText] = [*scored]
        """Tokens whose text is held back: a part of a character, or the possible beginning of a stop string."""

    def read(self, event: TokenEvent, engine: Engine) -> Delta:
        """The delta of one token. Raises RequestError: the engine could not draw one."""
        if event.finish_reason == "error":
            if self._constraint is not None and not self._constraint.mask().any():
                raise RequestError(
                    400, "the JSON schema allows no further text, or is too large", code="schema_error"
                )
            raise RequestError(
                500, "no token can be drawn: the model's logits are not finite", code="engine_error"
            )
        text, self._echo = self._echo, ""
        is_special = event.token in self._specials
        # After an echo a special token is listed, too: its reader counts tokens from the end of the prompt.
        if self.request.parameters.logprobs is not None and event.token >= 0 and (text or not is_special):
            self._held.append(TokenText.of(self.tokenizer, event.token, event.logprob, event.top_logprobs))
        if event.token >= 0 and not is_special:
            text += self._stream.feed(event.token)
        return self._delta(text, event)

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


class ChatReader(TextReader):
    """The assistant's message of a conversation, a call from its first token (`is_call`) or by choice, under `call`."""

    def __init__(
        self,
        chat: ChatFormat | TemplateFormat | PlainFormat,
        request: Request,
        call: TokenConstraint | None = None,
        *,
        is_call: bool = False,
    ):
        super().__init__(chat.tokenizer, request)
        self._call, self._is_call = call, is_call
        self._chat = chat if isinstance(chat, ChatFormat) else None
        self._follower = None if self._chat is None else CallFollower(self._chat)
        self._tokens: list[int] = []  # all tokens of the answer up to a call
        self._arguments: list[int] = []  # tokens of the call

    def read(self, event: TokenEvent, engine: Engine) -> Delta:
        if self._is_call and event.finish_reason != "error":
            return self._read_call(event)
        if self._chat is None or self._follower is None or event.finish_reason is not None:
            return super().read(event, engine)
        self._tokens.append(event.token)
        if event.token == self._chat.python_start and self._call is not None:
            return self._begin_call(self._call)
        result = self._follower.feed(event.token)
        if result is not None:
            delta = self._delta(self._stream.feed_bytes(f"={result}>>".encode()), event)
            is_put = self._follower.force(engine, event.request_id, result)
            return delta if is_put else replace(delta, finish_reason="length")
        if event.token == self._chat.python_start:
            return self._delta(self._stream.feed_bytes(b"<<"), event)
        return super().read(event, engine)

    def _begin_call(self, constraint: TokenConstraint) -> Delta:
        """Let the tokens from here on follow the grammar of calls."""
        self._is_call, self._constraint = True, constraint
        old = self.request
        left = (old.parameters.max_tokens or 0) - len(self._tokens)
        if left < 1:
            return Delta(finish_reason="length")
        parameters = replace(old.parameters, max_tokens=left, stop=())
        prompt = [*old.prompt, *self._tokens]
        return Delta(continued=replace(old, prompt=prompt, parameters=parameters, constraint=constraint))

    def _read_call(self, event: TokenEvent) -> Delta:
        if event.token >= 0 and event.token not in self._specials:
            self._arguments.append(event.token)
        if event.finish_reason is None:
            return Delta()
        try:
            call = json.loads(self.tokenizer.decode(self._arguments))
        except ValueError:  # cut off by max_tokens
            return Delta(finish_reason="length")
        arguments = json.dumps(call["arguments"], ensure_ascii=False)
        return Delta(
            call=FunctionCall(f"call_{uuid.uuid4().hex}", call["name"], arguments), finish_reason="tool_calls"
        )


# ---- on the wire ----


class CompletionWriter:
    """Answers and chunks of POST /v1/completions, as JSON objects."""

    prefix = "cmpl"
    whole_kind = chunk_kind = "text_completion"

    def __init__(self, model: str, prompt_tokens: int, *, logprobs: bool, usage: bool):
        """Args: logprobs: whether they are asked for; usage: whether a stream ends with the counts of tokens."""
        self._logprobs, self._usage, self._prompt_tokens = logprobs, usage, prompt_tokens
        self._head = {"id": f"{self.prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}
        self._lengths: dict[int, int] = {}  # characters sent so far of each choice

    def whole(self, answers: Sequence[Answer], generated: int) -> JsonObject:
        """The answer without streaming."""
        choices = [self._choice(index, each) for index, each in enumerate(answers)]
        return {**self._head, "object": self.whole_kind, "choices": choices, "usage": self._counts(generated)}

    def first(self, n: int) -> list[JsonObject]:
        """Chunks before all deltas of `n` answers."""
        return []

    def chunks(self, index: int, delta: Delta) -> list[JsonObject]:
        """The chunks of a delta of an answer."""
        return [self._chunk(choice) for choice in self._pieces(index, delta)]

    def last(self, generated: int) -> list[JsonObject]:
        """The counts of tokens where they are asked for."""
        if not self._usage:
            return []
        return [{**self._head, "object": self.chunk_kind, "choices": [], "usage": self._counts(generated)}]

    def _chunk(self, choice: JsonObject) -> JsonObject:
        no_usage = {"usage": None} if self._usage else {}
        return {**self._head, "object": self.chunk_kind, "choices": [choice], **no_usage}

    def _counts(self, generated: int) -> JsonObject:
        total = self._prompt_tokens + generated
        return {"prompt_tokens": self._prompt_tokens, "completion_tokens": generated, "total_tokens": total}

    def _pieces(self, index: int, delta: Delta) -> list[JsonObject]:
        return [self._choice(index, delta)] if delta.text or delta.tokens or delta.finish_reason else []

    def _choice(self, index: int, said: Answer | Delta) -> JsonObject:
        logprobs = self._token_lists(index, said.tokens) if self._logprobs else None
        self._lengths[index] = self._lengths.get(index, 0) + len(said.text)
        return {"index": index, "text": said.text, "logprobs": logprobs, "finish_reason": said.finish_reason}

    def _token_lists(self, index: int, tokens: Sequence[TokenText]) -> JsonObject:
        texts = [each.content.decode(errors="replace") for each in tokens]
        offset = self._lengths.get(index, 0)
        tops: list[JsonObject | None] = []
        for each in tokens:
            pairs = [(content.decode(errors="replace"), _finite(logprob)) for content, logprob in each.top]
            # Of tokens with the same text the most likely one counts.
            tops.append(None if each.logprob is None else {**dict(pairs), **dict(reversed(pairs))})
        return {
            "tokens": texts,
            "token_logprobs": [_finite(each.logprob) for each in tokens],
            "top_logprobs": tops,
            "text_offset": [offset + sum(map(len, texts[:number])) for number in range(len(texts))],
        }


class ChatWriter(CompletionWriter):
    """The same of POST /v1/chat/completions."""

    prefix, whole_kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def first(self, n: int) -> list[JsonObject]:
        return [self._chunk(_piece(index, {"role": "assistant", "content": ""})) for index in range(n)]

    def _pieces(self, index: int, delta: Delta) -> list[JsonObject]:
        pieces = []
        if delta.text or delta.tokens:
            pieces.append(_piece(index, {"content": delta.text}, self._token_objects(delta.tokens)))
        if delta.call is not None:
            pieces.append(_piece(index, {"tool_calls": [{"index": 0, **delta.call.as_dict()}]}))
        if delta.finish_reason is not None:
            pieces.append(_piece(index, {}, reason=delta.finish_reason))
        return pieces

    def _choice(self, index: int, said: Answer | Delta) -> JsonObject:
        message: JsonObject = {"role": "assistant", "content": said.text, "refusal": None}
        if said.call is not None:
            message |= {"content": said.text or None, "tool_calls": [said.call.as_dict()]}
        logprobs = self._token_objects(said.tokens)
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": said.finish_reason}

    def _token_objects(self, tokens: Sequence[TokenText]) -> JsonObject | None:
        if not self._logprobs:
            return None
        content = []
        for each in tokens:
            top = [_token_object(text, logprob) for text, logprob in each.top]
            content.append({**_token_object(each.content, each.logprob), "top_logprobs": top})
        return {"content": content, "refusal": None}


def _piece(index: int, delta: JsonObject, logprobs: Any = None, reason: str | None = None) -> JsonObject:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}


def _token_object(content: bytes, logprob: float | None) -> JsonObject:
    return {"token": content.decode(errors="replace"), "logprob": _finite(logprob), "bytes": list(content)}


def _finite(logprob: float | None) -> float | None:
    """A log-probability as JSON has it: OpenAI writes -9999 for impossible tokens, null for the first of a prompt."""
    return None if logprob is None else max(logprob, -9999.0)
