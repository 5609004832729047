"""The JSON of messages and functions, as OpenAI's API and data sets have it, and errors that name a field.

Fields of a message that are not known have no effect: `ignored_fields` names them.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, TypeVar

from annotated_types import Ge, Len
from pydantic import BaseModel, ConfigDict, Field

from danalab.errors import UserError, nearest

T = TypeVar("T")
Ignored = Annotated[Any, "ignored"]
MAX_MESSAGES = 2000


class Body(BaseModel):
    """JSON that a program sends."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())


class PastBody(Body):
    """A piece of what was said, as clients send it back: fields that they added are of no interest."""

    model_config = ConfigDict(extra="ignore")


class SentMessage(Body):
    """A message; fields that are not known have no effect and are named (`ignored_fields`)."""

    model_config = ConfigDict(extra="allow")


class PastCalculation(PastBody):
    expression: str
    result: str
    position: Annotated[int, Ge(0)] = 0
    """Characters of the text before it."""


class TextPart(PastBody):
    type: Literal["text", "input_text", "output_text"]
    text: str
    weight: Literal[0, 1] | None = None


class RefusalPart(PastBody):
    type: Literal["refusal"]
    refusal: str


class CalculationPart(PastBody):
    """Our own form of a call and of its result."""

    type: Literal["python", "python_output"]
    text: str
    weight: Literal[0, 1] | None = None


class TextMessage(SentMessage):
    role: Literal["system", "developer", "user"]
    content: str | Annotated[list[TextPart], Len(1)]


class CalledFunction(PastBody):
    name: str
    arguments: str | dict[str, Any]
    """A JSON object, or its text."""


class ToolCall(PastBody):
    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


AnswerPart = Annotated[TextPart | RefusalPart | CalculationPart, Field(discriminator="type")]


class AssistantMessage(SentMessage):
    role: Literal["assistant"]
    content: str | list[AnswerPart] | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: CalledFunction | None = None
    calculations: list[PastCalculation] | None = None
    weight: Literal[0, 1] | None = None
    """0: fine-tuning does not learn it."""


class ToolMessage(SentMessage):
    role: Literal["tool", "function"]
    content: str | Annotated[list[TextPart], Len(1)]
    tool_call_id: str | None = None
    """Null: the first call without a result."""


AnyMessage = Annotated[TextMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]
AnyMessages = Annotated[list[AnyMessage], Len(1, MAX_MESSAGES)]


class Function(Body):
    """A function that the model may call. Chat completions wrap it, responses have its type beside the name."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON schema of the arguments; null: no arguments."""
    strict: bool | None = None
    """Accepted without effect: arguments always follow the schema."""


class WrappedFunction(Body, Generic[T]):
    type: Literal["function"]
    function: T


def ignored_fields(body: Body) -> list[str]:
    """Names of fields that are given and have no effect."""
    names: dict[str, None] = {}
    for name, value in body:
        info = type(body).model_fields.get(name)
        if (info is None or "ignored" in info.metadata) and value not in (None, False, "", [], {}):
            names[name if re.fullmatch(r"\w{1,40}", name, re.ASCII) else "?"] = None
        for inner in value if isinstance(value, list) else [value]:
            names |= {f"{name}.{each}": None for each in ignored_fields(inner)} if isinstance(inner, Body) else {}
    return list(names)


class FieldError(UserError):
    """JSON that is not as it must be. `param`: path of the field, "messages.0.content"; `code`: name for programs."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None):
        super().__init__(message)
        self.param, self.code = param, code


def field_error(errors: Sequence[Mapping[str, Any]], body: Any, known: Sequence[str] = ()) -> FieldError:
    """The error for pydantic's errors about some JSON; `known` fields are suggested."""
    # A union reports an error for each member; the one that lies deepest is about the member that was meant.
    path, details = max(((_path(error, body), error) for error in errors), key=lambda pair: len(pair[0]))
    param = ".".join(map(str, path))[:200] or None
    context = details.get("ctx", {})
    code = None
    match details["type"]:
        case "json_invalid":
            message = f"the body is not valid JSON: {context.get('error', 'it cannot be read')}"
        case "missing":
            message = "the body is missing" if param is None else f"'{param}' is missing"
        case "extra_forbidden":
            hint = nearest(str(path[-1]), known) if len(path) == 1 else ""
            message, code = f"'{param}' is not a known field{hint}", "unknown_parameter"
        case "unsupported":
            message, code = f"'{param}' {details['msg']}", "unsupported_parameter"
        case "literal_error":
            message, code = f"'{param}' must be {context['expected']}", "unsupported_value"
        case "union_tag_not_found":
            param = f"{param}.{_tag(context)}"
            message = f"'{param}' is missing"
        case "union_tag_invalid":
            param = f"{param}.{_tag(context)}"
            message, code = f"'{param}' must be one of {context['expected_tags']}", "unsupported_value"
        case "model_attributes_type" | "model_type" | "dict_type":
            message = f"'{param}' must be a JSON object" if param else "the body must be a JSON object"
        case _:
            reason = str(details["msg"]).replace("Input should", "must").replace("List should", "must")
            message = f"'{param}': {reason}" if param else f"the body: {reason}"
    return FieldError(message, param, code)


def _tag(context: Mapping[str, Any]) -> str:
    """The field that tells which kind of object is meant; by a function: `type`."""
    name = context["discriminator"]
    return name[1:-1] if name.startswith("'") else "type"


def _path(error: Mapping[str, Any], body: Any) -> list[str | int]:
    """The place of an error in the JSON of the request, without the names of types that pydantic adds."""
    path: list[str | int] = []
    place: Any = body
    steps = [step for step in error["loc"] if step != "body"]
    for number, step in enumerate(steps):
        if step in (place if isinstance(place, dict) else range(len(place)) if isinstance(place, list) else ()):
            path.append(step)
            place = place[step]
        elif error["type"] == "missing" and number == len(steps) - 1:
            path.append(step)
    return path
