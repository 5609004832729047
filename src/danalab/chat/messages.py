"""Messages as people and programs write them, and what they become. One reader serves training, terminal and server.

    OpenAI      {"messages": [{"role": "user", "content": "text" or [parts]}, ...], "tools": [...]}, or the bare list
    ShareGPT    {"conversations": [{"from": "human", "value": "text"}, ...]}
    Alpaca      {"instruction": "text", "input": "text", "output": "text"}
    pairs       {"prompt": "text" or [messages], "completion": "text" or [messages]}, {"question", "response"}

    system     "... You can call these functions: [...]"
    user       question
    assistant  text  python {"name": ..., "arguments": {...}}  python_output RESULT  text ...

Calls and their results are parts of the assistant's message. Neighbouring messages of one role become one; a later
system message is part of the next user's message, as the first one is in our format. Keys without effect are named.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple, get_args

from pydantic import TypeAdapter, ValidationError

from danalab.chat.message_fields import (
    AnyMessages,
    AssistantMessage,
    CalculationPart,
    FieldError,
    Function,
    PastCalculation,
    RefusalPart,
    TextMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    field_error,
    ignored_fields,
)
from danalab.errors import UserError
from danalab.files import parse_json

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
        """For JSON: the content is plain text where there is nothing else."""
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
                self.add_answer([replace(each, trained=trained and each.trained) for each in parts], where)
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

    def add_answer(self, parts: Sequence[Part], where: str) -> None:
        """What the assistant has said; an empty message says nothing."""
        parts = [each for each in parts if each.text and (self.calculates or each.type == "text")]
        if parts:
            self._parts("assistant", where).extend(parts)

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
        for place, part in enumerate(parts):
            if isinstance(part, _OpenCall) and call_id in (None, part.id):
                parts[place] = Part("python_output", text)
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


# ---- lines of JSONL ----

_SPEAKERS = {
    "human": "user", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant", "model": "assistant",
    "observation": "tool", "function_response": "tool",
}  # fmt: skip
_PAIRS = (("instruction", "output"), ("prompt", "completion"), ("prompt", "response"), ("question", "response"))
_ASKED = ("user", "assistant")
_KNOWN = (
    'a line is {"messages": [...]}, a list of messages, {"conversations": [...]}, {"instruction", "output"} or '
    '{"prompt", "completion"}'
)


class ReadMessages(NamedTuple):
    messages: tuple[Message, ...]
    ignored: list[str]
    """Names of fields of messages that have no effect."""


def read_messages(value: Any) -> ReadMessages:
    """The messages of the JSON of a line, in any of the forms above; UserError: the first thing that is wrong."""
    entries, tools = _as_openai(value)
    checked = _checked(AnyMessages, entries, "messages")
    functions = _checked(list[Function], tools, "tools")
    builder = ConversationBuilder()
    for number, message in enumerate(checked):
        builder.add(message, f"messages.{number}")
    ignored = dict.fromkeys(name for message in checked for name in ignored_fields(message))
    return ReadMessages(builder.build(functions, "messages"), list(ignored))


def _as_openai(value: Any) -> tuple[Any, Any]:
    """(messages, tools) of a line, in OpenAI's form."""
    line = {"messages": value} if isinstance(value, list) else value
    if not isinstance(line, Mapping):
        raise UserError(f"{_KNOWN}, not {type(value).__name__}")
    tools = line.get("tools") or line.get("functions") or []
    tools = parse_json(tools, "'tools'") if isinstance(tools, str) else tools
    if isinstance(tools, list):  # wrapped, typed or bare
        bare = ({key: each[key] for key in each if key != "type"} if isinstance(each, dict) else each for each in tools)
        tools = [each.get("function", each) if isinstance(each, dict) else each for each in bare]
    for name in ("messages", "conversations", "conversation"):
        if line.get(name) is not None:
            entries = [*map(_said, line[name])] if isinstance(line[name], list) else line[name]
            break
    else:
        pair = next((pair for pair in _PAIRS if None not in map(line.get, pair)), None)
        if pair is None:
            raise UserError(f"{_KNOWN}; this one has {', '.join(map(str, line))[:80] or 'nothing'}")
        question, answer = map(line.get, pair)
        more = line.get("input") if pair[0] == "instruction" else None
        question = f"{question}\n\n{more}" if more and isinstance(question, str) else question
        before = [turn for turn in _listed(line.get("history")) if len(_listed(turn)) == 2]
        said = [(role, each) for turn in (*before, (question, answer)) for role, each in zip(_ASKED, turn, strict=True)]
        entries = [one for role, each in said for one in (_listed(each) or [{"role": role, "content": each}])]
    system = line.get("system") or line.get("system_prompt")
    return [{"role": "system", "content": system}, *entries] if system and isinstance(entries, list) else entries, tools


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _said(entry: Any) -> Any:
    """An entry of ShareGPT's form in OpenAI's."""
    if not isinstance(entry, Mapping) or "from" not in entry or "role" in entry:
        return entry
    speaker, value = entry["from"], entry.get("value")
    others = {key: each for key, each in entry.items() if key not in ("from", "value")}
    if speaker == "function_call":
        call = parse_json(value, "the function call") if isinstance(value, str) else value
        return {"role": "assistant", "tool_calls": [{"function": call}], **others}
    role = _SPEAKERS.get(speaker, speaker) if isinstance(speaker, str) else speaker
    return {"role": role, "content": value, **others}


def _checked(kind: Any, value: Any, name: str) -> Any:
    try:
        return _adapter(kind).validate_python(value)
    except ValidationError as error:
        raise field_error([{**each, "loc": (name, *each["loc"])} for each in error.errors()], {name: value}) from None


_adapter = lru_cache(maxsize=None)(TypeAdapter)
