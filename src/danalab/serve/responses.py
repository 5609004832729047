"""POST /v1/responses: OpenAI's newer API, for text and function calls. Nothing is stored between requests."""

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, Len
from pydantic import Field

from danalab.chat.conversations import Conversation
from danalab.serve.fields import (
    Body,
    Count,
    Function,
    Ignored,
    JsonObject,
    JsonObjectFormat,
    PastBody,
    PastCalculation,
    Sampling,
    TextFormat,
    Unsupported,
    calculations_json,
    only,
    past_parts,
)
from danalab.serve.messages import ConversationBuilder, NamedTool, Tool
from danalab.serve.planner import ChatQuestion, Plan, Planner
from danalab.serve.readers import Answer, FunctionCall
from danalab.serve.worker import Generations

# ---- the request ----


class InputText(PastBody):
    type: Literal["input_text", "output_text"]
    text: str


class InputMessage(PastBody):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Annotated[list[InputText], Len(1)]
    calculations: list[PastCalculation] | None = None

    @property
    def text(self) -> str:
        """The content as one text."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class InputCall(PastBody):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class InputResult(PastBody):
    type: Literal["function_call_output"]
    call_id: str
    output: str


class JsonSchemaFormat(Body):
    type: Literal["json_schema"]
    name: str
    schema_: Annotated[JsonObject, Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


class TextSettings(Body):
    format: Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")] | None = None
    verbosity: Ignored = None


class FunctionTool(Function):
    type: Literal["function"]


class NamedFunctionTool(Body):
    type: Literal["function"]
    name: str


class ResponseRequest(Sampling):
    """A question, or a conversation to continue."""

    input: str | Annotated[list[InputMessage | InputCall | InputResult], Len(1, 2000)]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    text: TextSettings | None = None
    tools: Annotated[list[FunctionTool], Len(0, 128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedFunctionTool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    """auto: the oldest turns are left out if the conversation exceeds the context."""
    metadata: dict[str, str] | None = None
    """Returned as it is."""
    parallel_tool_calls: bool | None = None
    """Accepted without effect: an answer has at most one call."""

    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None
    reasoning: Ignored = None
    safety_identifier: Ignored = None
    store: Ignored = None
    background: Annotated[bool | None, only(False)] = None
    include: Annotated[list[str] | None, only([])] = None
    service_tier: Annotated[str | None, only("auto", "default")] = None
    top_logprobs: Annotated[int | None, Ge(0), Le(20), only(0)] = None
    stream_options: Unsupported = None
    conversation: Unsupported = None
    context_management: Unsupported = None
    max_tool_calls: Unsupported = None
    previous_response_id: Unsupported = None
    prompt: Unsupported = None

    def plan(self, planner: Planner, scope: str) -> Plan:
        """The work of the engine."""
        tools = [each.as_tool() for each in self.tools or ()]
        named = isinstance(self.tool_choice, NamedFunctionTool)
        choice = NamedTool(self.tool_choice.name) if named else self.tool_choice
        question = ChatQuestion(
            conversation=self._conversation([] if choice == "none" else tools, planner.chat_model.calls_tools),
            sampling=self.sampling(max_tokens=self.max_output_tokens),
            tools=tools,
            tool_choice=choice or "auto",
            schema=self._schema(),
            drops_old_turns=self.truncation == "auto",
        )
        return planner.chat(question, scope)

    def _schema(self) -> JsonObject | None:
        match self.text and self.text.format:
            case JsonObjectFormat():
                return {"type": "object"}
            case JsonSchemaFormat(schema_=schema):
                return schema
        return None

    def _conversation(self, tools: Sequence[Tool], calculates: bool) -> Conversation:
        builder = ConversationBuilder()
        if self.instructions is not None:
            builder.add_text("system", self.instructions)
        entries = [InputMessage(role="user", content=self.input)] if isinstance(self.input, str) else self.input
        for number, entry in enumerate(entries):
            where = f"input.{number}"
            match entry:
                case InputMessage(role="assistant"):
                    builder.add_parts("assistant", past_parts(entry.text, entry.calculations if calculates else None))
                case InputMessage():
                    builder.add_text(entry.role, entry.text)
                case InputCall():
                    builder.add_call(entry.call_id, entry.name, entry.arguments, f"{where}.arguments")
                case InputResult():
                    builder.add_result(entry.call_id, entry.output, f"{where}.call_id")
        return builder.build(tools, "input")


# ---- the answer ----


@dataclass
class _Item:
    """The one item of an answer: a message, or a function call."""

    answer: Answer
    id: str = field(default_factory=lambda: f"msg_{uuid.uuid4().hex}")

    @property
    def status(self) -> str:
        if self.answer.finish_reason is None:
            return "in_progress"
        return "incomplete" if self.answer.finish_reason == "length" else "completed"

    @property
    def part(self) -> JsonObject:
        return {"type": "output_text", "text": self.answer.text, "annotations": [], "logprobs": []}

    def message(self) -> JsonObject:
        """The message; while it is in progress it has no content."""
        content = [] if self.answer.finish_reason is None else [self.part]
        more = {"calculations": calculations_json(self.answer)} if self.answer.calculations else {}
        return {
            "id": self.id, "type": "message", "status": self.status, "role": "assistant", "content": content, **more,
        }  # fmt: skip


def _function_call(call: FunctionCall, *, complete: bool = True) -> JsonObject:
    return {
        "id": "fc_" + call.id.removeprefix("call_"),
        "type": "function_call",
        "status": "completed" if complete else "in_progress",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments if complete else "",
    }


class ResponseWriter:
    """The answer and the events of one request, as JSON objects."""

    def __init__(self, request: ResponseRequest, model: str, prompt_tokens: int):
        self._request, self._prompt_tokens, self._model = request, prompt_tokens, model
        self._id, self._created = f"resp_{uuid.uuid4().hex}", time.time()
        self._events = 0

    def whole(self, answers: Sequence[Answer], generated: int) -> JsonObject:
        """The answer without streaming."""
        return self._response(_Item(answers[0]), generated)

    async def chunks(self, generations: Generations) -> AsyncIterator[JsonObject]:
        """The events of a stream."""
        item = _Item(Answer())
        yield self._event("response.created", response=self._response(item, 0))
        yield self._event("response.in_progress", response=self._response(item, 0))
        async for _, delta in generations:
            opened = bool(item.answer.text)
            item.answer.add(delta)
            ends_as_text = delta.finish_reason is not None and delta.call is None
            if not opened and (delta.text or ends_as_text):
                started = {**item.message(), "status": "in_progress", "content": []}
                yield self._event("response.output_item.added", output_index=0, item=started)
                empty = {**item.part, "text": ""}
                yield self._text_event("response.content_part.added", item, part=empty)
            if delta.text:
                yield self._text_event("response.output_text.delta", item, delta=delta.text, logprobs=[])
            if delta.finish_reason is not None:
                for event in self._closing(item):
                    yield event
        name = "response.incomplete" if item.status == "incomplete" else "response.completed"
        yield self._event(name, response=self._response(item, generations.tokens))

    def _closing(self, item: _Item) -> list[JsonObject]:
        events = []
        call, output = item.answer.call, self._output(item)
        if call is None or item.answer.text:
            events += [
                self._text_event("response.output_text.done", item, text=item.answer.text, logprobs=[]),
                self._text_event("response.content_part.done", item, part=item.part),
                self._event("response.output_item.done", output_index=0, item=output[0]),
            ]
        if call is not None:
            place = {"output_index": len(output) - 1, "item_id": output[-1]["id"]}
            added = _function_call(call, complete=False)
            events += [
                self._event("response.output_item.added", output_index=place["output_index"], item=added),
                self._event("response.function_call_arguments.delta", **place, delta=call.arguments),
                self._event("response.function_call_arguments.done", **place, name=call.name, arguments=call.arguments),
                self._event("response.output_item.done", output_index=place["output_index"], item=output[-1]),
            ]
        return events

    def _event(self, kind: str, /, **content: Any) -> JsonObject:
        self._events += 1
        return {"type": kind, "sequence_number": self._events - 1, **content}

    def _text_event(self, kind: str, item: _Item, /, **content: Any) -> JsonObject:
        return self._event(kind, item_id=item.id, output_index=0, content_index=0, **content)

    def _output(self, item: _Item) -> list[JsonObject]:
        if item.answer.finish_reason is None:
            return []
        output = [] if item.answer.call is not None and not item.answer.text else [item.message()]
        return output if item.answer.call is None else [*output, _function_call(item.answer.call)]

    def _response(self, item: _Item, generated: int) -> JsonObject:
        request, done = self._request, item.answer.finish_reason is not None
        cut = item.status == "incomplete"
        usage = {
            "input_tokens": self._prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": generated,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self._prompt_tokens + generated,
        }
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "completed_at": time.time() if done else None,
            "status": item.status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata or {},
            "model": self._model,
            "output": self._output(item),
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": 1.0 if request.temperature is None else request.temperature,
            "text": {
                "format": _as_json(request.text.format) if request.text and request.text.format else {"type": "text"}
            },
            "tool_choice": _as_json(request.tool_choice) or "auto",
            "tools": [_as_json(tool) for tool in request.tools or ()],
            "top_p": 1.0 if request.top_p is None else request.top_p,
            "truncation": request.truncation or "disabled",
            "usage": usage if done else None,
            "user": request.user,
        }


def _as_json(value: Any) -> Any:
    return value.model_dump(by_alias=True) if isinstance(value, Body) else value
