"""POST /v1/responses: OpenAI's newer API, for text and function calls. Nothing is stored between requests."""

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, Len
from pydantic import Discriminator, Field, Tag

from danalab.chat.messages import (
    AssistantMessage,
    Body,
    ConversationBuilder,
    Function,
    Ignored,
    PastBody,
    PastCalculation,
    RefusalPart,
    TextPart,
    plain_text,
)
from danalab.inference import SamplingParameters
from danalab.serve.app import ENDPOINTS
from danalab.serve.completions import ConversationRequest
from danalab.serve.fields import (
    Count,
    JsonObject,
    JsonObjectFormat,
    JsonSchema,
    NamedFunction,
    TextFormat,
    ToolChoice,
    Unsupported,
    only,
)
from danalab.serve.planner import Answer, FunctionCall
from danalab.serve.worker import Generations

# ---- the request ----


class InputMessage(PastBody):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Annotated[list[TextPart | RefusalPart], Len(1)]
    calculations: list[PastCalculation] | None = None


class InputCall(PastBody):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class InputResult(PastBody):
    type: Literal["function_call_output"]
    call_id: str
    output: str | Annotated[list[TextPart], Len(1)]


class InputReasoning(PastBody):
    """What another model thought; it is left out."""

    type: Literal["reasoning"]


def _item_type(item: Any) -> Any:
    """A message may leave its type out, as clients do that write histories themselves."""
    return item.get("type") or "message" if isinstance(item, dict) else getattr(item, "type", "message")


InputItem = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[InputCall, Tag("function_call")]
    | Annotated[InputResult, Tag("function_call_output")]
    | Annotated[InputReasoning, Tag("reasoning")],
    Discriminator(_item_type),
]


class TypedSchema(JsonSchema):
    type: Literal["json_schema"]


class TypedFunction(Function):
    type: Literal["function"]


class TypedFunctionName(NamedFunction):
    type: Literal["function"]


class TextSettings(Body):
    format: Annotated[TextFormat | JsonObjectFormat | TypedSchema, Field(discriminator="type")] | None = None
    verbosity: Ignored = None


class ResponseRequest(ConversationRequest):
    """A question, or a conversation to continue."""

    input: str | Annotated[list[InputItem], Len(1, 2000)]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    text: TextSettings | None = None
    tools: Annotated[list[TypedFunction], Len(0, 128)] | None = None
    tool_choice: ToolChoice | TypedFunctionName | None = None
    n: Unsupported = None
    metadata: dict[str, str] | None = None
    """Returned as it is."""

    prompt_cache_retention: Ignored = None
    reasoning: Ignored = None
    background: Annotated[bool | None, only(False)] = None
    include: Annotated[list[str] | None, only([])] = None
    top_logprobs: Annotated[int | None, Ge(0), Le(20), only(0)] = None
    stream_options: Unsupported = None
    conversation: Unsupported = None
    context_management: Unsupported = None
    max_tool_calls: Unsupported = None
    previous_response_id: Unsupported = None
    prompt: Unsupported = None

    def asked(self) -> tuple[str, SamplingParameters, Any]:
        return "input", self.sampling(max_tokens=self.max_output_tokens), self.text and self.text.format

    def add_to(self, builder: ConversationBuilder) -> None:
        if self.instructions is not None:
            builder.add_text("system", self.instructions, "instructions")
        entries = [InputMessage(role="user", content=self.input)] if isinstance(self.input, str) else self.input
        for number, entry in enumerate(entries):
            where = f"input.{number}"
            match entry:
                case InputMessage(role="assistant"):
                    message = AssistantMessage(**entry.model_dump(exclude={"type"}))
                    builder.add(message, where)
                case InputMessage():
                    builder.add_text(entry.role, plain_text(entry.content), where)
                case InputCall():
                    builder.add_call(entry.call_id, entry.name, entry.arguments, f"{where}.arguments")
                case InputResult():
                    builder.add_result(entry.call_id, plain_text(entry.output), f"{where}.call_id")


# ---- the answer ----


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
    """The answer and the events of one request, as JSON objects. It has one item, a message or a call, or both."""

    names_events = True

    def __init__(self, request: ResponseRequest, model: str, prompt_tokens: int):
        self._request, self._prompt_tokens, self._model = request, prompt_tokens, model
        self._id, self._message_id, self._created = f"resp_{uuid.uuid4().hex}", f"msg_{uuid.uuid4().hex}", time.time()
        self._answer = Answer()
        self._events = 0

    def whole(self, answers: Sequence[Answer], generated: int) -> JsonObject:
        """The answer without streaming."""
        self._answer = answers[0]
        return self._response(generated)

    async def chunks(self, generations: Generations) -> AsyncIterator[JsonObject]:
        """The events of a stream."""
        answer = self._answer
        yield self._event("response.created", response=self._response(0))
        yield self._event("response.in_progress", response=self._response(0))
        async for _, delta in generations:
            is_first = not answer.text
            answer.add(delta)
            ends_as_text = delta.finish_reason is not None and delta.call is None
            if is_first and (delta.text or ends_as_text):
                started = {**self._message(), "status": "in_progress", "content": []}
                yield self._event("response.output_item.added", output_index=0, item=started)
                yield self._text_event("response.content_part.added", part={**self._part(), "text": ""})
            if delta.text:
                yield self._text_event("response.output_text.delta", delta=delta.text, logprobs=[])
            if delta.finish_reason is not None:
                for event in self._closing():
                    yield event
        name = "response.incomplete" if self._status() == "incomplete" else "response.completed"
        yield self._event(name, response=self._response(generations.tokens))

    def _closing(self) -> list[JsonObject]:
        events = []
        call, output = self._answer.call, self._output()
        if call is None or self._answer.text:
            events += [
                self._text_event("response.output_text.done", text=self._answer.text, logprobs=[]),
                self._text_event("response.content_part.done", part=self._part()),
                self._event("response.output_item.done", output_index=0, item=output[0]),
            ]
        if call is not None:
            address = {"output_index": len(output) - 1, "item_id": output[-1]["id"]}
            added = _function_call(call, complete=False)
            events += [
                self._event("response.output_item.added", output_index=address["output_index"], item=added),
                self._event("response.function_call_arguments.delta", **address, delta=call.arguments),
                self._event(
                    "response.function_call_arguments.done", **address, name=call.name, arguments=call.arguments
                ),
                self._event("response.output_item.done", output_index=address["output_index"], item=output[-1]),
            ]
        return events

    def _event(self, kind: str, /, **content: Any) -> JsonObject:
        self._events += 1
        return {"type": kind, "sequence_number": self._events - 1, **content}

    def _text_event(self, kind: str, /, **content: Any) -> JsonObject:
        return self._event(kind, item_id=self._message_id, output_index=0, content_index=0, **content)

    def _status(self) -> str:
        match self._answer.finish_reason:
            case None:
                return "in_progress"
            case "length":
                return "incomplete"
        return "completed"

    def _part(self) -> JsonObject:
        return {"type": "output_text", "text": self._answer.text, "annotations": [], "logprobs": []}

    def _message(self) -> JsonObject:
        more = {"calculations": self._answer.calculations_json} if self._answer.calculations else {}
        return {
            "id": self._message_id, "type": "message", "status": self._status(), "role": "assistant",
            "content": [self._part()], **more,
        }  # fmt: skip

    def _output(self) -> list[JsonObject]:
        answer = self._answer
        if answer.finish_reason is None:
            return []
        message = [self._message()] if answer.text or answer.call is None else []
        return message if answer.call is None else [*message, _function_call(answer.call)]

    def _response(self, generated: int) -> JsonObject:
        request, done, status = self._request, self._answer.finish_reason is not None, self._status()
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
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata or {},
            "model": self._model,
            "output": self._output(),
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


ENDPOINTS.add("/v1/responses", (ResponseRequest, ResponseWriter))
