"""POST /v1/chat/completions: the request, the answer, and the chunks of a stream."""

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, Len
from pydantic import Field

from danalab.chat.assistant.conversation_builder import ConversationBuilder
from danalab.chat.assistant.deltas import Answer, FunctionCall, TokenText
from danalab.chat.assistant.plans import ChatQuestion
from danalab.chat.assistant.tools import NamedTool, Tool
from danalab.chat.conversations import Conversation
from danalab.chat.server.api.fields import (
    Body,
    Choices,
    Count,
    Function,
    JsonObject,
    JsonObjectFormat,
    TextFormat,
    Unsupported,
    finite,
    only,
)
from danalab.chat.server.worker import Generations

# ---- the request ----


class TextPart(Body):
    type: Literal["text"]
    text: str


Text = str | Annotated[list[TextPart], Len(1)]


class SystemMessage(Body):
    role: Literal["system", "developer"]
    content: Text
    name: Unsupported = None


class UserMessage(Body):
    role: Literal["user"]
    content: Text
    name: Unsupported = None


class CalledFunction(Body):
    name: str
    arguments: str


class ToolCall(Body):
    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(Body):
    role: Literal["assistant"]
    content: Text | None = None
    tool_calls: Annotated[list[ToolCall], Len(1)] | None = None
    refusal: Unsupported = None
    audio: Unsupported = None
    name: Unsupported = None
    function_call: Unsupported = None


class ToolMessage(Body):
    role: Literal["tool"]
    content: Text
    tool_call_id: str


Message = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


class JsonSchema(Body):
    name: str
    schema_: Annotated[JsonObject, Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(Body):
    type: Literal["json_schema"]
    json_schema: JsonSchema


class FunctionTool(Body):
    type: Literal["function"]
    function: Function


class NamedFunction(Body):
    name: str


class NamedFunctionTool(Body):
    type: Literal["function"]
    function: NamedFunction


class ChatCompletionRequest(Choices):
    """A conversation to continue."""

    messages: Annotated[list[Message], Len(1, 2000)]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    """The newer name of `max_tokens`."""
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Ge(0), Le(20)] | None = None
    response_format: Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")] | None = (
        None
    )
    tools: Annotated[list[FunctionTool], Len(1, 128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedFunctionTool | None = None
    parallel_tool_calls: bool | None = None
    """Accepted without effect: an answer has at most one call."""
    truncation: Literal["auto", "disabled"] | None = None
    """auto: the oldest turns are left out if the conversation exceeds the context. Beyond OpenAI's API."""

    metadata: dict[str, str] | None = None
    store: Annotated[bool | None, only(False)] = None
    service_tier: Annotated[str | None, only("auto", "default")] = None
    modalities: Annotated[list[str] | None, only(["text"])] = None
    audio: Unsupported = None
    function_call: Unsupported = None
    functions: Unsupported = None
    prediction: Unsupported = None
    prompt_cache_key: Unsupported = None
    reasoning_effort: Unsupported = None
    safety_identifier: Unsupported = None
    verbosity: Unsupported = None
    web_search_options: Unsupported = None

    def question(self) -> ChatQuestion:
        """The request in the form that the chat endpoints share."""
        max_tokens = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        tools = [each.function.as_tool() for each in self.tools or ()]
        choice = (
            NamedTool(self.tool_choice.function.name)
            if isinstance(self.tool_choice, NamedFunctionTool)
            else self.tool_choice
        )
        return ChatQuestion(
            conversation=_conversation(self.messages, [] if choice == "none" else tools),
            sampling=self.sampling(max_tokens, (self.top_logprobs or 0) if self.logprobs else None),
            n=self.n or 1,
            tools=tools,
            tool_choice=choice or "auto",
            schema=_schema(self.response_format),
            drops_old_turns=self.truncation == "auto",
        )


def _schema(form: Any) -> JsonObject | None:
    match form:
        case JsonObjectFormat():
            return {"type": "object"}
        case JsonSchemaFormat():
            return form.json_schema.schema_
    return None


def _conversation(messages: Sequence[Any], tools: Sequence[Tool]) -> Conversation:
    builder = ConversationBuilder()
    for number, message in enumerate(messages):
        where = f"messages.{number}"
        match message:
            case SystemMessage():
                builder.add_system(plain_text(message.content), where)
            case UserMessage():
                builder.add_text("user", plain_text(message.content))
            case AssistantMessage():
                if message.content:
                    builder.add_text("assistant", plain_text(message.content))
                for call in message.tool_calls or ():
                    builder.add_call(call.id, call.function.name, call.function.arguments, f"{where}.tool_calls")
            case ToolMessage():
                builder.add_result(message.tool_call_id, plain_text(message.content), f"{where}.tool_call_id")
    return builder.build(tools, "messages")


def plain_text(content: str | list[TextPart]) -> str:
    """A message's content as one text."""
    return content if isinstance(content, str) else "".join(part.text for part in content)


# ---- the answer ----


class ChatCompletionWriter:
    """Answers and chunks of one request, as JSON objects."""

    def __init__(self, request: ChatCompletionRequest, model: str, prompt_tokens: int):
        self._request, self._prompt_tokens = request, prompt_tokens
        self._head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    def whole(self, answers: Sequence[Answer], generated: int) -> JsonObject:
        """The answer without streaming."""
        choices = [
            {
                "index": index,
                "message": self._message(answer),
                "logprobs": self._logprobs(answer.tokens),
                "finish_reason": answer.finish_reason,
            }
            for index, answer in enumerate(answers)
        ]
        return {**self._head, "object": "chat.completion", "choices": choices, "usage": self._usage(generated)}

    async def chunks(self, generations: Generations) -> AsyncIterator[JsonObject]:
        """The chunks of a stream."""
        for index in range(len(generations.all)):
            yield self._chunk(index, {"role": "assistant", "content": ""})
        async for index, delta in generations:
            if delta.text or delta.tokens:
                yield self._chunk(index, {"content": delta.text}, self._logprobs(delta.tokens))
            if delta.calculation is not None:
                yield self._chunk(index, {"calculation": asdict(delta.calculation)})
            if delta.call is not None:
                yield self._chunk(index, {"tool_calls": [{"index": 0, **_call(delta.call)}]})
            if delta.finish_reason is not None:
                yield self._chunk(index, {}, reason=delta.finish_reason)
        if self._request.includes_usage:
            yield {
                **self._head,
                "object": "chat.completion.chunk",
                "choices": [],
                "usage": self._usage(generations.tokens),
            }

    def _chunk(self, index: int, delta: JsonObject, logprobs: Any = None, reason: str | None = None) -> JsonObject:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        usage = {"usage": None} if self._request.includes_usage else {}
        return {**self._head, "object": "chat.completion.chunk", "choices": [choice], **usage}

    def _message(self, answer: Answer) -> JsonObject:
        message: JsonObject = {"role": "assistant", "content": answer.text or None, "refusal": None}
        if answer.call is None:
            message["content"] = answer.text
        else:
            message["tool_calls"] = [_call(answer.call)]
        if answer.calculations:
            message["calculations"] = [asdict(each) for each in answer.calculations]
        return message

    def _logprobs(self, tokens: Sequence[TokenText]) -> JsonObject | None:
        if not self._request.logprobs:
            return None

        def entry(content: bytes, logprob: float) -> JsonObject:
            return {"token": content.decode(errors="replace"), "logprob": finite(logprob), "bytes": list(content)}

        content = [
            {
                **entry(each.content, each.logprob),
                "top_logprobs": [entry(text, logprob) for _, text, logprob in each.top],
            }
            for each in tokens
        ]
        return {"content": content, "refusal": None}

    def _usage(self, generated: int) -> JsonObject:
        total = self._prompt_tokens + generated
        return {"prompt_tokens": self._prompt_tokens, "completion_tokens": generated, "total_tokens": total}


def _call(call: FunctionCall) -> JsonObject:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
