"""POST /v1/chat/completions: the request, the answer, and the chunks of a stream.

    ChatCompletionRequest -> conversation -> Planner -> engine -> Delta, Delta, ... -> ChatCompletionWriter

An answer can be sent back as it is: what a client added to it is ignored, calculations become parts again.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

from annotated_types import Ge, Le, Len
from pydantic import Field

from danalab.chat.message_fields import AnyMessages, Function, Ignored, WrappedFunction
from danalab.chat.messages import ConversationBuilder
from danalab.inference import SamplingParameters
from danalab.serve.completions import ChoiceWriter
from danalab.serve.fields import (
    Choices,
    Count,
    JsonObject,
    JsonObjectFormat,
    NamedFunction,
    TextFormat,
    ToolChoice,
    Unsupported,
    WrappedSchema,
    finite,
    only,
)
from danalab.serve.planner import ConversationRequest
from danalab.serve.readers import Answer, FunctionCall, TokenText
from danalab.serve.worker import Generations

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

        def entry(content: bytes, logprob: float) -> JsonObject:
            return {"token": content.decode(errors="replace"), "logprob": finite(logprob), "bytes": list(content)}

        content = []
        for each in tokens:
            top = [entry(text, logprob) for _, text, logprob in each.top]
            content.append({**entry(each.content, each.logprob), "top_logprobs": top})
        return {"content": content, "refusal": None}


def _call(call: FunctionCall) -> JsonObject:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
