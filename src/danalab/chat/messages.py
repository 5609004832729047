"""Messages as programs send them, in OpenAI's JSON, and what they become: the parts of our conversations.

    system     "... You can call these functions: [...]"
    user       question
    assistant  text  python {"name": ..., "arguments": {...}}  python_output RESULT  text ...

Calls and their results are parts of the assistant's message. Neighbouring messages of one role become one; a later
system message is part of the next user's message, as the first one is in our format. Fields of a message that are not
known have no effect: `ignored_fields` names them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar, get_args

from annotated_types import Ge, Len
from pydantic import BaseModel, ConfigDict, Field

from danalab.errors import UserError

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


Role = Literal["system", "user", "assistant"]
PartType = Literal["text", "python", "python_output"]
ROLES: tuple[str, ...] = get_args(Role)
PART_TYPES: tuple[str, ...] = get_args(PartType)
NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class Part:
    """A piece of a message: text, a tool call (python), or the tool's answer (python_output)."""

    type: PartType
    text: str
    trained: bool = True
    """Whether fine-tuning learns it; only what the assistant says is learned."""


@dataclass(frozen=True)
class Message:
    """What one side says in one turn.

    UserError: an unknown role, an empty message, or a tool call outside of an assistant's message.
    """

    role: Role
    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise UserError(f"role {self.role!r:.40}: known are {', '.join(ROLES)}")
        before = None
        for part in self.parts:
            if part.type not in PART_TYPES:
                raise UserError(f"part of type {part.type!r:.40}: known are {', '.join(PART_TYPES)}")
            if part.type != "text" and self.role != "assistant":
                raise UserError(f"a {part.type} part in the {self.role}'s message: only the assistant calls tools")
            if part.type == "python" and not part.text.strip():
                raise UserError("an empty python part")
            if part.type == "python_output" and before != "python":
                raise UserError("a python_output part that does not follow a python part")
            before = part.type
        if not any(part.text.strip() for part in self.parts):
            raise UserError("the message is empty")

    @classmethod
    def of(cls, role: Role, content: str | Sequence[Part]) -> Message:
        """A message of plain text, or of parts; neighbouring pieces of text become one part."""
        parts = [Part("text", content)] if isinstance(content, str) else content
        joined: list[Part] = []
        for part in parts:
            before = joined[-1] if joined else None
            if before and part.type == before.type == "text" and part.trained == before.trained:
                joined[-1] = replace(before, text=before.text + part.text)
            elif part.text or part.type != "text":
                joined.append(part)
        return cls(role, tuple(joined))

    @property
    def text(self) -> str:
        """The text parts together, without tool calls and their outputs."""
        return "".join(part.text for part in self.parts if part.type == "text")

    @property
    def shown(self) -> tuple[Part, ...]:
        """The parts that every client keeps: text, and calls of functions, which are JSON; calculations are hidden."""
        shown: list[Part] = []
        for part, call in zip(self.parts, (None, *self.parts), strict=False):
            made = part if part.type == "python" else call if part.type == "python_output" else None
            if made is None or made.text.lstrip().startswith("{"):
                shown.append(part)
        return tuple(shown)

    def as_dict(self) -> dict[str, Any]:
        """The message for JSON: the content is plain text where there is nothing else."""
        if all(part.type == "text" and part.trained for part in self.parts):
            return {"role": self.role, "content": self.text}
        weights = ({} if part.trained else {"weight": 0} for part in self.parts)
        parts = zip(self.parts, weights, strict=True)
        return {"role": self.role, "content": [{"type": part.type, "text": part.text, **own} for part, own in parts]}


# ---- from these to parts ----


class _OpenCall(NamedTuple):
    """Stands after a call whose result is missing."""

    id: str | None


@dataclass
class _Turn:
    role: str
    where: str
    """Place of its first message, for errors."""
    parts: list[Part | _OpenCall] = field(default_factory=list)


@dataclass
class ConversationBuilder:
    """Collects messages in order; errors name the place that the caller gives."""

    calculates: bool = True
    """Whether the model knows calculations; otherwise they are left out."""
    system: list[str] = field(default_factory=list)
    turns: list[_Turn] = field(default_factory=list)

    def add(self, message: TextMessage | AssistantMessage | ToolMessage, where: str) -> None:
        """One message."""
        match message:
            case TextMessage():
                self.add_text(message.role, plain_text(message.content), where)
            case ToolMessage():
                self.add_result(message.tool_call_id, plain_text(message.content), f"{where}.tool_call_id")
            case AssistantMessage():
                trained = message.weight != 0
                content = message.content or message.refusal or ""
                parts = [Part("text", content)] if isinstance(content, str) else [_part(each) for each in content]
                if message.calculations:
                    parts = answer_parts("".join(part.text for part in parts), message.calculations)
                said = [each for each in parts if each.text and (self.calculates or each.type == "text")]
                if said:  # an empty message says nothing
                    own = (replace(each, trained=trained and each.trained) for each in said)
                    self._parts("assistant", where).extend(own)
                calls = list(message.tool_calls or ())
                if message.function_call is not None:
                    calls.append(ToolCall(function=message.function_call))
                for call in calls:
                    name, arguments = call.function.name, call.function.arguments
                    self.add_call(call.id, name, arguments, f"{where}.tool_calls", trained=trained)

    def add_text(self, role: str, text: str, where: str = "messages") -> None:
        """What one side says; neighbouring messages of one role become one."""
        if role in ("system", "developer"):
            if not self.turns:
                self.system.append(text)
                return
            role = "user"
        known = self._parts(role, where)
        if known and isinstance(known[-1], Part) and known[-1].type == "text":
            known.append(Part("text", "\n\n"))
        known.append(Part("text", text))

    def add_call(
        self, call_id: str | None, name: str, arguments: str | dict[str, Any], where: str, *, trained: bool = True
    ) -> None:
        """A call by the assistant."""
        values = arguments
        if isinstance(arguments, str):
            try:
                values = json.loads(arguments)
            except (ValueError, RecursionError):
                raise FieldError(f"'{where}': the arguments are not valid JSON", where) from None
        call = Part("python", json.dumps({"name": name, "arguments": values}), trained)
        self._parts("assistant", where).extend([call, _OpenCall(call_id)])

    def add_result(self, call_id: str | None, text: str, where: str) -> None:
        """The result of a call; None: of the first one that has none."""
        parts = self.turns[-1].parts if self.turns else []
        for index, part in enumerate(parts):
            if isinstance(part, _OpenCall) and call_id in (None, part.id):
                parts[index] = Part("python_output", text)
                return
        named = "waits for a result" if call_id is None else f"has the id {call_id!r:.80}"
        raise FieldError(f"'{where}': no open call {named}", where)

    def build(self, tools: Sequence[Function], where: str) -> tuple[Message, ...]:
        """The messages; FieldError: a call without result, or an empty message; else at `where`."""
        system = [*self.system, *([_describe(tools)] if tools else [])]
        text = "\n\n".join(filter(str.strip, system))
        messages = [Message.of("system", text)] if text else []
        for turn in self.turns:
            try:
                parts = [part for part in turn.parts if isinstance(part, Part)]
                if missing := [part for part in turn.parts if isinstance(part, _OpenCall)]:
                    raise UserError(f"the call {missing[0].id!r:.80} has no result")
                messages.append(Message.of(turn.role, parts))  # pyright: ignore[reportArgumentType]
            except UserError as error:
                raise FieldError(f"'{turn.where}': {error}", where) from None
        return tuple(messages)

    def _parts(self, role: str, where: str) -> list[Part | _OpenCall]:
        if not self.turns or self.turns[-1].role != role:
            self.turns.append(_Turn(role, where))
        return self.turns[-1].parts


AnyPart = TextPart | RefusalPart | CalculationPart


def plain_text(content: str | Sequence[AnyPart]) -> str:
    """A message's content as one text."""
    return content if isinstance(content, str) else "".join(_part(each).text for each in content)


def _part(part: AnyPart) -> Part:
    match part:
        case RefusalPart():
            return Part("text", part.refusal)
        case CalculationPart():
            return Part(part.type, part.text, part.weight != 0)
    return Part("text", part.text, part.weight != 0)


def answer_parts(text: str, calculations: Sequence[PastCalculation]) -> list[Part]:
    """The parts of an assistant's message: its text with the calculations at their places."""
    parts, done = [], 0
    for each in sorted(calculations, key=lambda each: each.position):
        parts.append(Part("text", text[done : each.position]))
        parts += [Part("python", each.expression), Part("python_output", each.result)]
        done = max(done, each.position)
    return [*parts, Part("text", text[done:])]


def _describe(tools: Sequence[Function]) -> str:
    listed = [
        {"name": each.name, "description": each.description or "", "parameters": each.parameters or NO_ARGUMENTS}
        for each in tools
    ]
    return (
        f"You can call these functions:\n{json.dumps(listed)}\n"
        'A call is a JSON object {"name": NAME, "arguments": {...}}; its result follows.'
    )
