"""Requests with choices, and what is answered: POST /v1/chat/completions, /v1/completions, /tokenize and /detokenize.

    ChatCompletionRequest -> conversation -> Planner -> engine -> Delta, Delta, ... -> ChatCompletionWriter

An answer can be sent back as it is: what a client added to it is ignored, calculations become parts again.
"""

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Len
from pydantic import Field

from danalab.chat.conversations import Conversation
from danalab.chat.messages import AnyMessages, Body, ConversationBuilder, FieldError, Function, Ignored, WrappedFunction
from danalab.errors import UserError
from danalab.inference import SamplingParameters
from danalab.serve.fields import (
    Count,
    JsonObject,
    JsonObjectFormat,
    NamedFunction,
    RequestError,
    TextFormat,
    ToolChoice,
    Unsupported,
    WrappedSchema,
    finite,
    only,
)
from danalab.serve.planner import Answer, ChatModel, ChatQuestion, EngineWork, FunctionCall, Planner, TokenText
from danalab.serve.worker import Generations


class StreamOptions(Body):
    include_usage: bool | None = None
    """Send a last chunk with the counts of tokens."""
    include_obfuscation: Annotated[bool | None, only(False)] = None


class Sampling(Body):
    """How tokens are chosen. `top_k`, `min_p` and `repetition_penalty` go beyond OpenAI's API."""

    model: str | None = None
    """Name of the served model; null: the only one."""
    temperature: Annotated[float, Ge(0), Le(2)] | None = None
    top_p: Annotated[float, Gt(0), Le(1)] | None = None
    top_k: Annotated[int, Ge(-1)] | None = None
    """0 and -1: all tokens."""
    min_p: Annotated[float, Ge(0), Le(1)] | None = None
    repetition_penalty: Annotated[float, Ge(0.1), Le(10)] | None = None
    seed: Annotated[int, Ge(-(2**63)), Le(2**63 - 1)] | None = None
    stream: bool | None = None
    user: Ignored = None

    def sampling(self, max_tokens: int | None, logprobs: int | None = None, **more: Any) -> SamplingParameters:
        """The parameters of the engine; the defaults and the meaning of `logprobs` are OpenAI's."""
        given = {name: getattr(self, name) for name in _SAMPLING if getattr(self, name) is not None}
        given["top_k"] = max(0, self.top_k or 0)
        return SamplingParameters(
            **{"temperature": 1.0, **given}, max_tokens=max_tokens, logprobs=logprobs, model_logprobs=True, **more
        )


class Choices(Sampling):
    """Fields of the two endpoints with choices."""

    n: Count | None = None
    stop: Annotated[str, Len(0, 1000)] | Annotated[list[Annotated[str, Len(1, 1000)]], Len(0, 256)] | None = None
    """Texts that end the answer; they are not part of it."""
    logit_bias: Annotated[dict[str, Annotated[float, Ge(-100), Le(100)]], Len(0, 1024)] | None = None
    """Token id -> number added to its logit."""
    stream_options: StreamOptions | None = None
    frequency_penalty: Annotated[float, Ge(-2), Le(2)] | None = None
    presence_penalty: Annotated[float, Ge(-2), Le(2)] | None = None

    def sampling(self, max_tokens: int | None, logprobs: int | None = None, **more: Any) -> SamplingParameters:
        """See `Sampling`. Raises RequestError: a key of `logit_bias` is no number."""
        given = {name: getattr(self, name) for name in _PENALTIES if getattr(self, name) is not None}
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or ()
        bias = {_token_id(key): value for key, value in (self.logit_bias or {}).items()}
        return super().sampling(max_tokens, logprobs, stop=tuple(filter(None, stop)), logit_bias=bias, **given, **more)


_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed")


_PENALTIES = ("frequency_penalty", "presence_penalty")


def _token_id(key: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) < 10):
        raise RequestError(400, f"'logit_bias' has the key {key:.40}; it must be a token id", param="logit_bias")
    return int(key)


class ConversationRequest(Sampling):
    """What the two endpoints of conversations share."""

    tools: Any = None
    tool_choice: Any = None
    n: Any = None
    truncation: Literal["auto", "disabled"] | None = None
    """auto: the oldest turns are left out if the conversation exceeds the context. Beyond OpenAI's chat completions."""
    parallel_tool_calls: bool | None = None
    """Accepted without effect: an answer has at most one call."""
    prompt_cache_key: Ignored = None
    safety_identifier: Ignored = None
    store: Ignored = None
    service_tier: Annotated[str | None, only("auto", "default")] = None

    def add_to(self, builder: ConversationBuilder) -> None:
        """Give the messages to a builder; FieldError: one is malformed."""
        raise NotImplementedError

    def asked(self) -> tuple[str, SamplingParameters, Any]:
        """(field of the messages, parameters, format of the answer)."""
        raise NotImplementedError

    def plan(self, planner: Planner, scope: str) -> EngineWork:
        """The work of the engine."""
        where, sampling, form = self.asked()
        tools = [getattr(each, "function", each) for each in self.tools or ()]
        choice = getattr(self.tool_choice, "function", self.tool_choice) or "auto"
        builder = ConversationBuilder(planner.chat_model.calls_tools)
        try:
            self.add_to(builder)
            conversation = Conversation(builder.build([] if choice == "none" else tools, where))
        except FieldError as error:
            raise RequestError.of(error) from None
        except UserError as error:
            raise RequestError(400, f"'{where}': {error}", param=where) from None
        schema = {"type": "object"} if isinstance(form, JsonObjectFormat) else getattr(form, "schema_", None)
        question = ChatQuestion(
            conversation, sampling, self.n or 1, tools, choice, schema, drops_old_turns=self.truncation == "auto"
        )
        return planner.chat(question, scope)


DEFAULT_TOKENS = 16  # OpenAI's default of `max_tokens`

Ids = Annotated[list[int], Len(1)]


class CompletionRequest(Choices):
    """Prompts to continue, as texts or token ids."""

    prompt: str | Ids | Annotated[list[str], Len(1)] | Annotated[list[Ids], Len(1)]
    max_tokens: Count | None = None
    logprobs: Annotated[int, Ge(0), Le(5)] | None = None
    echo: bool | None = None
    """Begin the text with the prompt, and `logprobs` with those of its tokens."""
    best_of: Annotated[int | None, only(1)] = None
    suffix: Unsupported = None

    def plan(self, planner: Planner, scope: str) -> EngineWork:
        """The work of the engine."""
        single = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        prompts: list[Any] = [self.prompt] if single else list(self.prompt)
        sampling = self.sampling(self.max_tokens or DEFAULT_TOKENS, self.logprobs)
        return planner.completions(prompts, sampling, self.n or 1, scope, echo=bool(self.echo))


class ChoiceWriter:
    """Answers and chunks of a request with choices, as JSON objects."""

    prefix = "cmpl"
    whole_kind = chunk_kind = "text_completion"
    names_events = False
    """Whether a stream's events have a line with their type."""

    def __init__(self, request: Any, model: str, prompt_tokens: int):
        self._request, self._prompt_tokens = request, prompt_tokens
        self._head = {"id": f"{self.prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}
        self._lengths: dict[int, int] = {}  # characters sent so far of each choice

    def whole(self, answers: Sequence[Answer], generated: int) -> JsonObject:
        """The answer without streaming."""
        choices = [self._whole_choice(index, each) for index, each in enumerate(answers)]
        return {**self._head, "object": self.whole_kind, "choices": choices, "usage": self._usage(generated)}

    async def chunks(self, generations: Generations) -> AsyncIterator[JsonObject]:
        """The chunks of a stream; the last one has the counts of tokens where they are asked for."""
        head, options = {**self._head, "object": self.chunk_kind}, self._request.stream_options
        no_usage = {"usage": None} if options and options.include_usage else {}
        async for choice in self._pieces(generations):
            yield {**head, "choices": [choice], **no_usage}
        if no_usage:
            yield {**head, "choices": [], "usage": self._usage(generations.tokens)}

    def _usage(self, generated: int) -> JsonObject:
        total = self._prompt_tokens + generated
        return {"prompt_tokens": self._prompt_tokens, "completion_tokens": generated, "total_tokens": total}

    def _whole_choice(self, index: int, answer: Answer) -> JsonObject:
        return self._choice(index, answer.text, answer.tokens, answer.finish_reason)

    async def _pieces(self, generations: Generations) -> AsyncIterator[JsonObject]:
        async for index, delta in generations:
            if delta.text or delta.tokens or delta.finish_reason:
                yield self._choice(index, delta.text, delta.tokens, delta.finish_reason)

    def _choice(self, index: int, text: str, tokens: Sequence[TokenText], reason: str | None) -> JsonObject:
        logprobs = None if self._request.logprobs is None else self._logprobs(index, tokens)
        self._lengths[index] = self._lengths.get(index, 0) + len(text)
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def _logprobs(self, index: int, tokens: Sequence[TokenText]) -> JsonObject:
        texts = [each.content.decode(errors="replace") for each in tokens]
        offset = self._lengths.get(index, 0)
        tops: list[JsonObject | None] = []
        for each in tokens:
            pairs = [(content.decode(errors="replace"), finite(logprob)) for _, content, logprob in each.top]
            # Of tokens with the same text the most likely one counts.
            tops.append(None if each.logprob is None else {**dict(pairs), **dict(reversed(pairs))})
        return {
            "tokens": texts,
            "token_logprobs": [finite(each.logprob) for each in tokens],
            "top_logprobs": tops,
            "text_offset": [offset + sum(map(len, texts[:number])) for number in range(len(texts))],
        }


class TokenizeRequest(Body):
    text: str
    model: str | None = None


class DetokenizeRequest(Body):
    tokens: list[int]
    model: str | None = None


def tokenize(chat_model: ChatModel, request: TokenizeRequest) -> JsonObject:
    """The ids of a text."""
    ids = chat_model.ids(request.text, "text")
    return {"tokens": ids, "count": len(ids), "max_model_len": chat_model.context}


def detokenize(chat_model: ChatModel, request: DetokenizeRequest) -> JsonObject:
    """The text of ids; bytes that are not UTF-8 become U+FFFD."""
    return {"text": chat_model.tokenizer.decode(chat_model.ids(request.tokens, "tokens"))}


# ---- the request ----


class ChatCompletionRequest(ConversationRequest, Choices):
    """A conversation to continue."""

    messages: AnyMessages
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    """The newer name of `max_tokens`."""
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Ge(0), Le(20)] | None = None
    response_format: Annotated[TextFormat | JsonObjectFormat | WrappedSchema, Field(discriminator="type")] | None = None
    tools: Annotated[list[WrappedFunction[Function]], Len(0, 128)] | None = None
    tool_choice: ToolChoice | WrappedFunction[NamedFunction] | None = None
    n: Count | None = None

    metadata: Ignored = None
    reasoning_effort: Ignored = None
    verbosity: Ignored = None
    modalities: Annotated[list[str] | None, only(["text"])] = None
    audio: Unsupported = None
    function_call: Unsupported = None
    functions: Unsupported = None
    prediction: Unsupported = None
    web_search_options: Unsupported = None

    def asked(self) -> tuple[str, SamplingParameters, Any]:
        max_tokens = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        sampling = self.sampling(max_tokens, (self.top_logprobs or 0) if self.logprobs else None)
        return "messages", sampling, getattr(self.response_format, "json_schema", self.response_format)

    def add_to(self, builder: ConversationBuilder) -> None:
        for number, message in enumerate(self.messages):
            builder.add(message, f"messages.{number}")


# ---- the answer ----


class ChatCompletionWriter(ChoiceWriter):
    """Answers and chunks of one request, as JSON objects."""

    prefix, whole_kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def _whole_choice(self, index: int, answer: Answer) -> JsonObject:
        logprobs = self._token_logprobs(answer.tokens)
        return {
            "index": index, "message": self._message(answer), "logprobs": logprobs,
            "finish_reason": answer.finish_reason,
        }  # fmt: skip

    async def _pieces(self, generations: Generations) -> AsyncIterator[JsonObject]:
        def piece(index: int, delta: JsonObject, logprobs: Any = None, reason: str | None = None) -> JsonObject:
            return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}

        for index in range(len(generations.all)):
            yield piece(index, {"role": "assistant", "content": ""})
        async for index, delta in generations:
            if delta.text or delta.tokens:
                yield piece(index, {"content": delta.text}, self._token_logprobs(delta.tokens))
            if delta.calculation is not None:
                yield piece(index, {"calculation": generations.answers[index].calculations_json[-1]})
            if delta.call is not None:
                yield piece(index, {"tool_calls": [{"index": 0, **_call(delta.call)}]})
            if delta.finish_reason is not None:
                yield piece(index, {}, reason=delta.finish_reason)

    def _message(self, answer: Answer) -> JsonObject:
        message: JsonObject = {"role": "assistant", "content": answer.text or None, "refusal": None}
        if answer.call is None:
            message["content"] = answer.text
        else:
            message["tool_calls"] = [_call(answer.call)]
        if answer.calculations:
            message["calculations"] = answer.calculations_json
        return message

    def _token_logprobs(self, tokens: Sequence[TokenText]) -> JsonObject | None:
        if not self._request.logprobs:
            return None

        def entry(content: bytes, logprob: float | None) -> JsonObject:
            return {"token": content.decode(errors="replace"), "logprob": finite(logprob), "bytes": list(content)}

        content = []
        for each in tokens:
            top = [entry(text, logprob) for _, text, logprob in each.top]
            content.append({**entry(each.content, each.logprob), "top_logprobs": top})
        return {"content": content, "refusal": None}


def _call(call: FunctionCall) -> JsonObject:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
