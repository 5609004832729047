"""Messages and conversations, and how OpenAI's JSON becomes them: for training files, the server, and the terminal.

    system     "... You can call these functions: [...]"
    user       question
    assistant  text  call {"name": ..., "arguments": {...}}  result TEXT  text ...

A calculation is text: the model writes <<12*7 and the program adds =84>>, as in GSM8K. Whoever sends the text back has
sent everything. Neighbouring messages of one role become one; a later system message is part of the next user's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from danalab.errors import UserError

CALCULATION = re.compile(r"<<([^<>=]+)=([^<>=]*)>>")
"""A calculation in an assistant's text: (expression, result)."""
MAX_MESSAGES = 2000
MAX_FUNCTIONS = 128
NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
_FUNCTION_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

Role = Literal["system", "user", "assistant"]


class FieldError(UserError):
    """JSON that is not as it must be. `param`: path of the field, "messages.0.content"; `code`: name for programs."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None):
        super().__init__(message)
        self.param, self.code = param, code


@dataclass(frozen=True)
class Part:
    """A piece of a message: text, the call of a function as JSON, or the result of the call before it."""

    kind: Literal["text", "call", "result"]
    text: str


@dataclass(frozen=True)
class Message:
    """What one side says in one turn; only an assistant's message has calls and results."""

    role: Role
    parts: tuple[Part, ...]
    learned: bool = True
    """Whether fine-tuning learns it, where the assistant says it."""

    @classmethod
    def of(cls, role: Role, text: str) -> Message:
        """A message of plain text."""
        return cls(role, (Part("text", text),))

    @property
    def text(self) -> str:
        """The text, with its calculations, without calls of functions and their results."""
        return "".join(part.text for part in self.parts if part.kind == "text")

    @property
    def spoken(self) -> str:
        """The text without calculations: what a reward judges."""
        return CALCULATION.sub("", self.text)

    def as_dict(self) -> dict[str, Any]:
        """The text of the message for JSON."""
        return {"role": self.role, "content": self.text, **({} if self.learned else {"weight": 0})}


@dataclass(frozen=True)
class Conversation:
    """An optional system message, then user and assistant in turn, either of them first. UserError: another order."""

    messages: tuple[Message, ...]

    def __post_init__(self) -> None:
        turns = self.messages[1:] if self.messages and self.messages[0].role == "system" else self.messages
        if not any(message.role == "user" for message in turns):
            raise UserError("no user's message")
        first = len(self.messages) - len(turns) + 2
        for number, (before, message) in enumerate(pairwise(turns), first):
            expected = "user" if before.role == "assistant" else "assistant"
            if message.role != expected:
                raise UserError(f"message {number} is the {message.role}'s where the {expected}'s must stand")

    @classmethod
    def ask(cls, question: str, answer: str | None = None, system: str | None = None) -> Conversation:
        """One question, and its answer where there is one."""
        messages = [] if system is None else [Message.of("system", system)]
        messages.append(Message.of("user", question))
        if answer is not None:
            messages.append(Message.of("assistant", answer))
        return cls(tuple(messages))

    @property
    def is_open(self) -> bool:
        """Whether it ends with an assistant's message, which is to be continued."""
        return self.messages[-1].role == "assistant"

    def turns(self) -> Iterator[tuple[str | None, Message | None]]:
        """(what the user says, the assistant's answer); a system message is part of the first user's message.

        The first user's text is None where the assistant begins.
        """
        messages = list(self.messages)
        prefix = messages.pop(0).text + "\n\n" if messages[0].role == "system" else ""
        if messages[0].role == "assistant":
            yield None, messages.pop(0)
        for user in range(0, len(messages), 2):
            yield prefix + messages[user].text, messages[user + 1] if user + 1 < len(messages) else None
            prefix = ""

    def as_dict(self) -> dict[str, Any]:
        """The conversation for JSON."""
        return {"messages": [message.as_dict() for message in self.messages]}

    def as_json_line(self) -> str:
        """A line of a JSONL file."""
        return json.dumps(self.as_dict(), ensure_ascii=False) + "\n"


# ---- functions that the model may call ----


@dataclass(frozen=True)
class Function:
    """A function that the model may call."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of the arguments."""


def read_functions(value: Any, where: str = "tools") -> list[Function]:
    """The functions of a list of tools: wrapped as OpenAI does, or bare. FieldError: the first thing that is wrong."""
    if not isinstance(value, list) or len(value) > MAX_FUNCTIONS:
        raise FieldError(f"'{where}' must be a list of at most {MAX_FUNCTIONS} functions", where)
    return [_function(each, f"{where}.{number}") for number, each in enumerate(value)]


def _function(value: Any, where: str) -> Function:
    tool = _object(value, where)
    if tool.get("type", "function") != "function":
        raise FieldError(f"'{where}.type' must be 'function'", f"{where}.type", "unsupported_value")
    inner = _object(tool.get("function", tool), where)
    name, parameters = inner.get("name"), inner.get("parameters")
    if not isinstance(name, str) or not _FUNCTION_NAME.fullmatch(name):
        raise FieldError(
            f"'{where}': the name of a function is 1 to 64 letters, digits, - and _", f"{where}.name"
        )
    parameters = NO_ARGUMENTS if parameters is None else _object(parameters, f"{where}.parameters")
    return Function(name, str(inner.get("description") or ""), parameters)


def describe_functions(functions: Sequence[Function]) -> str:
    """The functions as the system message tells them to the model."""
    listed = [
        {"name": each.name, "description": each.description, "parameters": each.parameters}
        for each in functions
    ]
    return (
        f"You can call these functions:\n{json.dumps(listed)}\n"
        'A call is a JSON object {"name": NAME, "arguments": {...}}; its result follows.'
    )


# ---- reading ----


@dataclass
class _Turn:
    """Neighbouring messages of one role."""

    role: Role
    parts: list[Part] = field(default_factory=list)
    learned: bool = True
    open: list[tuple[str | None, int]] = field(default_factory=list)
    """(id of a call without a result, place of the result among the parts)."""


def read_messages(value: Any, functions: Sequence[Function] = (), where: str = "messages") -> Conversation:
    """The conversation of a list of messages in OpenAI's form. FieldError: the first thing that is wrong."""
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_MESSAGES:
        raise FieldError(f"'{where}' must be a list of 1 to {MAX_MESSAGES} messages", where)
    system: list[str] = []
    turns: list[_Turn] = []
    for number, entry in enumerate(value):
        _add(_object(entry, f"{where}.{number}"), f"{where}.{number}", system, turns)
    missing = [call for turn in turns for call in turn.open]
    if missing:
        raise FieldError(f"'{where}': the call {missing[0][0]!r:.80} has no result", where)
    if functions:
        system.append(describe_functions(functions))
    if not turns:  # instructions alone are the question
        turns, system = [_Turn("user", [Part("text", "\n\n".join(system))])], []
    instructions = "\n\n".join(filter(str.strip, system))
    messages = [Message.of("system", instructions)] if instructions else []
    messages += [Message(turn.role, tuple(turn.parts), turn.learned) for turn in turns]
    try:
        return Conversation(tuple(messages))
    except UserError as error:
        raise FieldError(f"'{where}': {error}", where) from None


def _add(entry: Mapping[str, Any], where: str, system: list[str], turns: list[_Turn]) -> None:
    """One message, to the instructions or to the turns."""
    role = entry.get("role")
    match role:
        case "system" | "developer" if not turns:
            system.append(_content(entry, where))
        case "system" | "developer" | "user":
            turn, text = _turn(turns, "user"), _content(entry, where)
            turn.parts.append(Part("text", f"\n\n{text}" if turn.parts else text))
        case "assistant":
            text, calls = _content(entry, where), entry.get("tool_calls") or []
            if entry.get("function_call"):
                calls = [{"function": entry["function_call"]}]
            if not isinstance(calls, list):
                raise FieldError(f"'{where}.tool_calls' must be a list", f"{where}.tool_calls")
            if not text and not calls:
                return  # it says nothing
            turn = _turn(turns, "assistant")
            turn.learned = turn.learned and entry.get("weight") != 0
            if text:
                turn.parts.append(Part("text", text))
            for number, call in enumerate(calls):
                _add_call(turn, call, f"{where}.tool_calls.{number}")
        case "tool" | "function":
            _add_result(turns, entry.get("tool_call_id"), _content(entry, where), f"{where}.tool_call_id")
        case None:
            raise FieldError(f"'{where}.role' is missing", f"{where}.role")
        case _:
            known = "system, developer, user, assistant, tool"
            raise FieldError(f"'{where}.role' is {role!r:.40}; it must be one of {known}", f"{where}.role")


def _turn(turns: list[_Turn], role: Role) -> _Turn:
    if not turns or turns[-1].role != role:
        turns.append(_Turn(role))
    return turns[-1]


def _add_call(turn: _Turn, value: Any, where: str) -> None:
    call = _object(value, where)
    function = _object(call.get("function"), f"{where}.function")
    name, arguments = function.get("name"), function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            raise FieldError(f"'{where}': the arguments are not valid JSON", where) from None
    if not isinstance(name, str):
        raise FieldError(f"'{where}.function.name' must be a text", where)
    turn.parts += [Part("call", json.dumps({"name": name, "arguments": arguments})), Part("result", "")]
    turn.open.append((call.get("id"), len(turn.parts) - 1))


def _add_result(turns: list[_Turn], call_id: Any, text: str, where: str) -> None:
    """The result of a call of the last turn; None: of the first one that has none."""
    for call in turns[-1].open if turns else ():
        if call_id in (None, call[0]):
            turns[-1].parts[call[1]] = Part("result", text)
            turns[-1].open.remove(call)
            return
    named = "waits for a result" if call_id is None else f"has the id {call_id!r:.80}"
    raise FieldError(f"'{where}': no open call {named}", where)


def _content(entry: Mapping[str, Any], where: str) -> str:
    """The content of a message as one text."""
    content, where = entry.get("content"), f"{where}.content"
    if isinstance(content, str):
        return content
    if content is None and entry.get("role") == "assistant":
        return str(entry.get("refusal") or "")
    if not isinstance(content, list):
        raise FieldError(f"'{where}' must be a text, or a list of parts", where)
    texts = []
    for number, value in enumerate(content):
        part = _object(value, f"{where}.{number}")
        kind = part.get("type")
        text = part.get("refusal" if kind == "refusal" else "text")
        if kind not in _PARTS:
            told = f"'{where}.{number}.type' is {kind!r:.40}; it must be one of {', '.join(_PARTS)}"
            raise FieldError(told, f"{where}.{number}.type", "unsupported_value")
        if not isinstance(text, str):
            raise FieldError(f"'{where}.{number}.text' must be a text", f"{where}.{number}.text")
        texts.append(_PARTS[kind].format(text))
    return "".join(texts)


_PARTS = {
    "text": "{}",
    "input_text": "{}",
    "output_text": "{}",
    "refusal": "{}",
    "python": "<<{}",
    "python_output": "={}>>",
}
"""Type of a part -> its text; the last two are nanochat's form of a calculation."""


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise FieldError(f"'{where}' must be a JSON object", where)
    return value
