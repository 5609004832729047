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
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any, Literal

from danalab.data.tokenizers.base import reject_surrogates
from danalab.errors import UserError

CALCULATION = re.compile(r"<<([^<>=]+)=([^<>=]*)>>")
"""A calculation in an assistant's text: (expression, result)."""
MAX_MESSAGES = 2000
MAX_FUNCTIONS = 128
NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
FUNCTIONS = (
    "You can call these functions:\n{}\n"
    'A call is a JSON object {{"name": NAME, "arguments": {{...}}}}; its result follows.'
)
"""What the system message tells the model of its functions."""
_FUNCTION_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

Role = Literal["system", "user", "assistant"]
Function = Mapping[str, Any]
"""A function that the model may call: name, description, parameters (the JSON schema of its arguments)."""


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
                raise UserError(f"message {number} has the role {message.role}; it must be {expected}")

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


# ---- functions that the model may call ----


def read_functions(value: Any, where: str = "tools") -> list[Function]:
    """The functions of a list of tools: wrapped as OpenAI does, or bare. FieldError: the first thing that is wrong."""
    if not isinstance(value, list) or len(value) > MAX_FUNCTIONS:
        raise FieldError(f"'{where}' must be a list of at most {MAX_FUNCTIONS} functions", where)
    functions = []
    for number, each in enumerate(value):
        at = f"{where}.{number}"
        tool = _object(each, at)
        if tool.get("type", "function") != "function":
            raise FieldError(f"'{at}.type' must be 'function'", f"{at}.type", "unsupported_value")
        inner = _object(tool.get("function", tool), at)
        name, parameters = inner.get("name"), inner.get("parameters")
        if not isinstance(name, str) or not _FUNCTION_NAME.fullmatch(name):
            told = f"'{at}': the name of a function is 1 to 64 letters, digits, - and _"
            raise FieldError(told, f"{at}.name")
        parameters = NO_ARGUMENTS if parameters is None else _object(parameters, f"{at}.parameters")
        described = str(inner.get("description") or "")
        functions.append({"name": name, "description": described, "parameters": parameters})
    return functions


# ---- reading ----


def read_messages(value: Any, functions: Sequence[Function] = (), where: str = "messages") -> Conversation:
    """The conversation of a list of messages in OpenAI's form. FieldError: the first thing that is wrong."""
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_MESSAGES:
        raise FieldError(f"'{where}' must be a list of 1 to {MAX_MESSAGES} messages", where)
    said: list[Message] = []  # of one part each
    waiting: list[tuple[Any, int]] = []  # (id of a call without a result, place of the result in `said`)
    for number, entry in enumerate(value):
        _add(_object(entry, f"{where}.{number}"), f"{where}.{number}", said, waiting)
    if waiting:
        raise FieldError(f"'{where}': the call {waiting[0][0]!r:.80} has no result", where)
    system = [each.text for each in said if each.role == "system"]
    turns = said[len(system) :]
    if functions:
        system.append(FUNCTIONS.format(json.dumps(functions)))
    instructions = "\n\n".join(filter(str.strip, system))
    messages = [Message.of("system", instructions)] if instructions else []
    for _, group in groupby(turns, key=lambda each: each.role):
        found = list(group)
        if found[0].role == "user":
            messages.append(Message.of("user", "\n\n".join(each.text for each in found)))
        else:
            parts = tuple(part for each in found for part in each.parts)
            messages.append(Message("assistant", parts, all(each.learned for each in found)))
    if not turns:  # instructions alone are the question
        messages = [Message.of("user", instructions)]
    try:
        return Conversation(tuple(messages))
    except UserError as error:
        raise FieldError(f"'{where}': {error}", where) from None


def _add(entry: Mapping[str, Any], where: str, said: list[Message], waiting: list[tuple[Any, int]]) -> None:
    """Add the parts of one message."""
    role = entry.get("role")
    match role:
        case "system" | "developer" | "user":
            begins = role != "user" and (not said or said[-1].role == "system")
            said.append(Message.of("system" if begins else "user", _content(entry, where)))
        case "assistant":
            text, calls = _content(entry, where), entry.get("tool_calls") or []
            if entry.get("function_call"):
                calls = [{"function": entry["function_call"]}]
            if not isinstance(calls, list):
                raise FieldError(f"'{where}.tool_calls' must be a list", f"{where}.tool_calls")
            learned = entry.get("weight") != 0
            if text:
                said.append(Message("assistant", (Part("text", text),), learned))
            for number, call in enumerate(calls):
                call_id, part = _call(call, f"{where}.tool_calls.{number}")
                said += [Message("assistant", (each,), learned) for each in (part, Part("result", ""))]
                waiting.append((call_id, len(said) - 1))
        case "tool" | "function":
            call_id, text = entry.get("tool_call_id"), _content(entry, where)
            call = next((each for each in waiting if call_id in (None, each[0])), None)  # None: the first one
            if call is None:
                named = "waits for a result" if call_id is None else f"has the id {call_id!r:.80}"
                raise FieldError(f"'{where}.tool_call_id': no open call {named}", f"{where}.tool_call_id")
            waiting.remove(call)
            said[call[1]] = replace(said[call[1]], parts=(Part("result", text),))
        case None:
            raise FieldError(f"'{where}.role' is missing", f"{where}.role")
        case _:
            known = "system, developer, user, assistant, tool"
            raise FieldError(f"'{where}.role' is {role!r:.40}; it must be one of {known}", f"{where}.role")


def _call(value: Any, where: str) -> tuple[Any, Part]:
    """(id, part) of a call."""
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
    return call.get("id"), Part("call", json.dumps({"name": name, "arguments": arguments}))


def _content(entry: Mapping[str, Any], where: str) -> str:
    """The content of a message as one text."""
    content, where = entry.get("content"), f"{where}.content"
    if content is None and entry.get("role") == "assistant":
        content = str(entry.get("refusal") or "")
    if not isinstance(content, str | list):
        raise FieldError(f"'{where}' must be a text, or a list of parts", where)
    text = content if isinstance(content, str) else "".join(_texts(content, where))
    try:
        reject_surrogates(text)
    except UserError as error:
        raise FieldError(f"'{where}': {error}", where) from None
    return text


def _texts(parts: list[Any], where: str) -> Iterator[str]:
    for number, value in enumerate(parts):
        part = _object(value, f"{where}.{number}")
        kind = part.get("type")
        text = part.get("refusal" if kind == "refusal" else "text")
        if kind not in _PARTS:
            told = f"'{where}.{number}.type' is {kind!r:.40}; it must be one of {', '.join(_PARTS)}"
            raise FieldError(told, f"{where}.{number}.type", "unsupported_value")
        if not isinstance(text, str):
            raise FieldError(f"'{where}.{number}.text' must be a text", f"{where}.{number}.text")
        yield _PARTS[kind].format(text)


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
