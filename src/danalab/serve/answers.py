"""Tokens of the engine become answers, piece by piece, and these become OpenAI's JSON.

    TokenEvent -> reader -> Delta, Delta, ... -> writer -> chunks of a stream, or of their sum a choice

Readers run in the engine's thread. A conversation's tokens are text, or stand between marks:

    text  python_start 12*7 python_end  output_start 84 output_end  text    read as <<12*7=84>>; we calculate
    text  python_start {"name": ..., "arguments": ...}                      with tools: the answer ends with a call
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from danalab.chat.marks import CallFollower, ChatFormat
from danalab.inference.json_constraint import JsonConstraint
from danalab.inference.request import Request, TextStream, TokenEvent
from danalab.serve.errors import RequestError

if TYPE_CHECKING:
    from danalab.chat.formats import PlainFormat, TemplateFormat
    from danalab.data.tokenizers import Tokenizer
    from danalab.inference.engine import Engine

JsonObject = dict[str, Any]
FinishReason = Literal["stop", "length", "tool_calls", "cancelled"]


@dataclass(frozen=True)
class Delta:
    """A piece of an answer; the sum of all is the answer."""

    text: str = ""
    tokens: tuple[JsonObject, ...] = ()
    """The tokens of `text` as OpenAI lists them, where log-probabilities are asked for."""
    call: JsonObject | None = None
    """A call of one of the request's tools, as OpenAI writes it."""
    finish_reason: FinishReason | None = None
    continued: Request | None = None
    """The request that replaces this one in the engine; its tokens continue the answer."""

    def __add__(self, other: Delta) -> Delta:
        tokens = self.tokens + other.tokens
        return Delta(self.text + other.text, tokens, other.call or self.call, other.finish_reason)


class TextReader:
    """Reads plain text; special tokens have none."""

    def __init__(self, tokenizer: Tokenizer, request: Request):
        self.tokenizer, self.request, self._constraint = tokenizer, request, request.constraint
        self._specials = frozenset(tokenizer.specials.values())
        self._stream = TextStream(tokenizer, request.parameters.stop, self._specials)
        self._held: list[JsonObject] = []
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
        if event.token < 0:
            return self._delta("", event)
        if self.request.parameters.logprobs is not None and event.token not in self._specials:
            top = [self._listed(token, logprob) for token, logprob in event.top_logprobs]
            self._held.append({**self._listed(event.token, event.logprob), "top_logprobs": top})
        return self._delta(self._stream.feed(event.token), event)

    def _listed(self, token: int, logprob: float) -> JsonObject:
        """A token as OpenAI lists it, which writes -9999 for impossible ones."""
        data = self.tokenizer.decode_bytes([token])
        text = data.decode(errors="replace")
        return {"token": text, "logprob": max(logprob, -9999.0), "bytes": list(data)}

    def _delta(self, text: str, event: TokenEvent) -> Delta:
        """Text with the tokens that it consists of, and the end of the answer."""
        reason: FinishReason | None = None
        if self._stream.stopped:
            reason = "stop"
        elif event.finish_reason is not None:
            reason = "length" if event.finish_reason == "length" else "stop"
            text += self._stream.finish()
        if not text:
            return Delta(finish_reason=reason)
        tokens, self._held = tuple(self._held), []
        return Delta(text, tokens, finish_reason=reason)


class ChatReader(TextReader):
    """The assistant's message of a conversation, a call from its first token (`is_call`) or by choice, under `call`."""

    def __init__(
        self,
        chat: ChatFormat | TemplateFormat | PlainFormat,
        request: Request,
        call: JsonConstraint | None = None,
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

    def _begin_call(self, constraint: JsonConstraint) -> Delta:
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
        function = {
            "name": call["name"],
            "arguments": json.dumps(call["arguments"], ensure_ascii=False),
        }
        made = {"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}
        return Delta(call=made, finish_reason="tool_calls")


# ---- on the wire ----


class CompletionWriter:
    """Answers and chunks of POST /v1/completions, as JSON objects."""

    prefix = "cmpl"
    whole_kind = chunk_kind = "text_completion"

    def __init__(self, model: str, prompt_tokens: int, *, usage: bool):
        """`usage`: whether a stream ends with the counts of tokens."""
        self._usage, self._prompt_tokens = usage, prompt_tokens
        self._head = {"id": f"{self.prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    def whole(self, answers: Sequence[Delta], generated: int) -> JsonObject:
        """The answer without streaming."""
        choices = [{"index": index, **self._choice(each)} for index, each in enumerate(answers)]
        return {**self._head, "object": self.whole_kind, "choices": choices, "usage": self._counts(generated)}

    def first(self, n: int) -> list[JsonObject]:
        """Chunks before all deltas of `n` answers."""
        return []

    def chunks(self, index: int, delta: Delta) -> list[JsonObject]:
        """The chunks of a delta of an answer."""
        return [self._chunk(index, piece) for piece in self._pieces(delta)]

    def last(self, generated: int) -> list[JsonObject]:
        """The counts of tokens where they are asked for."""
        if not self._usage:
            return []
        return [{**self._head, "object": self.chunk_kind, "choices": [], "usage": self._counts(generated)}]

    def _chunk(self, index: int, choice: JsonObject) -> JsonObject:
        no_usage = {"usage": None} if self._usage else {}
        choices = [{"index": index, **choice}]
        return {**self._head, "object": self.chunk_kind, "choices": choices, **no_usage}

    def _counts(self, generated: int) -> JsonObject:
        total = self._prompt_tokens + generated
        return {"prompt_tokens": self._prompt_tokens, "completion_tokens": generated, "total_tokens": total}

    def _pieces(self, delta: Delta) -> list[JsonObject]:
        return [self._choice(delta)] if delta.text or delta.finish_reason else []

    def _choice(self, said: Delta) -> JsonObject:
        logprobs = {
            "tokens": [each["token"] for each in said.tokens],
            "token_logprobs": [each["logprob"] for each in said.tokens],
            # Of tokens with the same text the most likely one counts.
            "top_logprobs": [
                {top["token"]: top["logprob"] for top in reversed(each["top_logprobs"])}
                for each in said.tokens
            ],
        }
        logprobs = logprobs if said.tokens else None
        return {"text": said.text, "logprobs": logprobs, "finish_reason": said.finish_reason}


class ChatWriter(CompletionWriter):
    """The same of POST /v1/chat/completions."""

    prefix, whole_kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def first(self, n: int) -> list[JsonObject]:
        begin = _piece({"role": "assistant", "content": ""})
        return [self._chunk(index, begin) for index in range(n)]

    def _pieces(self, delta: Delta) -> list[JsonObject]:
        pieces = []
        if delta.text:
            pieces.append(_piece({"content": delta.text}, logprobs=_listed(delta)))
        if delta.call is not None:
            pieces.append(_piece({"tool_calls": [{"index": 0, **delta.call}]}))
        if delta.finish_reason is not None:
            pieces.append(_piece({}, finish_reason=delta.finish_reason))
        return pieces

    def _choice(self, said: Delta) -> JsonObject:
        message: JsonObject = {"role": "assistant", "content": said.text, "refusal": None}
        if said.call is not None:
            message |= {"content": said.text or None, "tool_calls": [said.call]}
        return {"message": message, "logprobs": _listed(said), "finish_reason": said.finish_reason}


def _piece(delta: JsonObject, *, logprobs: Any = None, finish_reason: str | None = None) -> JsonObject:
    return {"delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


def _listed(said: Delta) -> JsonObject | None:
    return {"content": list(said.tokens), "refusal": None} if said.tokens else None
