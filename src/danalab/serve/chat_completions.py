"""POST /v1/chat/completions: the request, the answer, and the chunks of a stream.

    ChatCompletionRequest -> conversation -> Planner -> engine -> Delta, Delta, ... -> ChatCompletionWriter

An answer can be sent back as it is: what a client added to it is ignored, calculations become parts again.
"""

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, Len
from pydantic import Field

from danalab.chat.conversations import Conversation
from danalab.serve.fields import (
    Body,
    Choices,
    Count,
    Function,
    Ignored,
    JsonObject,
    JsonObjectFormat,
    PastBody,
    PastCalculation,
    TextFormat,
    Unsupported,
    calculations_json,
    finite,
    only,
    past_parts,
    usage,
)
from danalab.serve.messages import ConversationBuilder, NamedTool, Tool, ToolChoice
from danalab.serve.planner import ChatQuestion, Plan, Planner
from danalab.serve.readers import Answer, FunctionCall, TokenText
from danalab.serve.worker import Generations

# ---- the request ----


class TextPart(PastBody):
    type: Literal["text"]
    text: str


class SystemMessage(Body):
    role: Literal["system", "developer"]
    content: str | Annotated[list[TextPart], Len(1)]
    name: Ignored = None


class UserMessage(Body):
    role: Literal["user"]
    content: str | Annotated[list[TextPart], Len(1)]
    name: Ignored = None


class CalledFunction(PastBody):
    name: str
    arguments: str


class ToolCall(PastBody):
    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(PastBody):
    role: Literal["assistant"]
    content: str | list[TextPart] | None = None
    tool_calls: list[ToolCall] | None = None
    calculations: list[PastCalculation] | None = None


class ToolMessage(Body):
    role: Literal["tool"]
    content: str | Annotated[list[TextPart], Len(1)]
    tool_call_id: str
    name: Ignored = None


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
    tools: Annotated[list[FunctionTool], Len(0, 128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedFunctionTool | None = None
    parallel_tool_calls: bool | None = None
    """Accepted without effect: an answer has at most one call."""
    truncation: Literal["auto", "disabled"] | None = None
    """auto: the oldest turns are left out if the conversation exceeds the context. Beyond OpenAI's API."""

    metadata: Ignored = None
    prompt_cache_key: Ignored = None
    reasoning_effort: Ignored = None
    safety_identifier: Ignored = None
    store: Ignored = None
    verbosity: Ignored = None
    service_tier: Annotated[str | None, only("auto", "default")] = None
    modalities: Annotated[list[str] | None, only(["text"])] = None
    audio: Unsupported = None
    function_call: Unsupported = None
    functions: Unsupported = None
    prediction: Unsupported = None
    web_search_options: Unsupported = None

    def plan(self, planner: Planner, scope: str) -> Plan:
        """The work of the engine."""
        tools = [each.function.as_tool() for each in self.tools or ()]
        if isinstance(self.tool_choice, NamedFunctionTool):
            choice: ToolChoice = NamedTool(self.tool_choice.function.name)
        else:
            choice = self.tool_choice or "auto"
        max_tokens = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        question = ChatQuestion(
            conversation=self._conversation([] if choice == "none" else tools, planner.chat_model.calls_tools),
            sampling=self.sampling(max_tokens, (self.top_logprobs or 0) if self.logprobs else None),
            n=self.n or 1,
            tools=tools,
            tool_choice=choice,
            schema=self._schema(),
            drops_old_turns=self.truncation == "auto",
        )
        return planner.chat(question, scope)

    def _conversation(self, tools: Sequence[Tool], calculates: bool) -> Conversation:
        """The messages in the form of the training data; `calculates`: it has calculations."""
        builder = ConversationBuilder()
        for number, message in enumerate(self.messages):
            where, text = f"messages.{number}", plain_text(message.content)
            match message:
                case SystemMessage() | UserMessage():
                    builder.add_text(message.role, text)
                case AssistantMessage():
                    calculations = message.calculations if calculates else None
                    if text or calculations:
                        builder.add_parts("assistant", past_parts(text, calculations))
                    for call in message.tool_calls or ():
                        builder.add_call(call.id, call.function.name, call.function.arguments, f"{where}.tool_calls")
                case ToolMessage():
                    builder.add_result(message.tool_call_id, text, f"{where}.tool_call_id")
        return builder.build(tools, "messages")

    def _schema(self) -> JsonObject | None:
        match self.response_format:
            case JsonObjectFormat():
                return {"type": "object"}
            case JsonSchemaFormat(json_schema=form):
                return form.schema_
        return None


def plain_text(content: str | Sequence[TextPart] | None) -> str:
    """A message's content as one text."""
    return content if isinstance(content, str) else "".join(part.text for part in content or ())


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
        return {
            **self._head,
            "object": "chat.completion",
            "choices": choices,
            "usage": usage(self._prompt_tokens, generated),
        }

    async def chunks(self, generations: Generations) -> AsyncIterator[JsonObject]:
        """The chunks of a stream."""
        for index in range(len(generations.all)):
            yield self._chunk(index, {"role": "assistant", "content": ""})
        async for index, delta in generations:
            if delta.text or delta.tokens:
                yield self._chunk(index, {"content": delta.text}, self._logprobs(delta.tokens))
            if delta.calculation is not None:
                yield self._chunk(index, {"calculation": calculations_json(generations.answers[index])[-1]})
            if delta.call is not None:
                yield self._chunk(index, {"tool_calls": [{"index": 0, **_call(delta.call)}]})
            if delta.finish_reason is not None:
                yield self._chunk(index, {}, reason=delta.finish_reason)
        if self._request.includes_usage:
            counts = usage(self._prompt_tokens, generations.tokens)
            yield {**self._head, "object": "chat.completion.chunk", "choices": [], "usage": counts}

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
            message["calculations"] = calculations_json(answer)
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


def _call(call: FunctionCall) -> JsonObject:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
