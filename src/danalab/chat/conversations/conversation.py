"""Conversations as people write them, checked.

    {"messages": [{"role": "system" | "user" | "assistant", "content": "text" or [parts]}, ...]}
    part: {"type": "text" | "python" | "python_output", "text": "..."}

Order of roles: an optional system message, then user and assistant in turn.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from danalab.errors import UserError

Role = Literal["system", "user", "assistant"]
PartType = Literal["text", "python", "python_output"]
ROLES: tuple[str, ...] = get_args(Role)
PART_TYPES: tuple[str, ...] = get_args(PartType)


@dataclass(frozen=True)
class Part:
    """A piece of a message: text, a tool call (python), or the tool's answer (python_output)."""

    type: PartType
    text: str


@dataclass(frozen=True)
class Message:
    """What one side says in one turn.

    Raises:
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
            if part.type == "text" and joined and joined[-1].type == "text":
                joined[-1] = Part("text", joined[-1].text + part.text)
            elif part.text or part.type != "text":
                joined.append(part)
        return cls(role, tuple(joined))

    @property
    def text(self) -> str:
        """The text parts together, without tool calls and their outputs."""
        return "".join(part.text for part in self.parts if part.type == "text")

    def as_dict(self) -> dict[str, Any]:
        """For JSON: the content is plain text where there is nothing else."""
        if all(part.type == "text" for part in self.parts):
            return {"role": self.role, "content": self.text}
        return {"role": self.role, "content": [{"type": part.type, "text": part.text} for part in self.parts]}


@dataclass(frozen=True)
class Conversation:
    """An optional system message, then user and assistant in turn.

    Raises:
        UserError: roles out of order, or no user's message.
    """

    messages: tuple[Message, ...]

    def __post_init__(self) -> None:
        turns = self.messages[1:] if self.messages and self.messages[0].role == "system" else self.messages
        if not turns:
            raise UserError("no user's message")
        first = len(self.messages) - len(turns) + 1
        for number, message in enumerate(turns):
            expected = ROLES[1 + number % 2]
            if message.role != expected:
                raise UserError(f"message {first + number} is the {message.role}'s where the {expected}'s must stand")

    @classmethod
    def of(cls, value: Any, where: str = "") -> Conversation:
        """A conversation from the content of a JSON object; entries beside "messages" are ignored.

        Args: where: the origin, for errors, e.g. "FILE line 3".
        Raises:
            UserError: names the origin and the first thing that is wrong.
        """
        try:
            if not isinstance(value, Mapping) or not isinstance(value.get("messages"), list):
                raise UserError('an object with a list "messages" is expected')
            return cls(tuple(_message(entry, number) for number, entry in enumerate(value["messages"], 1)))
        except UserError as error:
            raise UserError(f"{where}: {error}" if where else str(error)) from None

    @classmethod
    def from_json(cls, line: str, where: str = "") -> Conversation:
        """A conversation from one line of a JSONL file. Arguments and errors as of `of`."""
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise UserError(f"{where}: not valid JSON: {reason}" if where else f"not valid JSON: {reason}") from None
        return cls.of(value, where)

    @classmethod
    def ask(cls, question: str, answer: str | Sequence[Part] | None = None, system: str | None = None) -> Conversation:
        """One question, and its answer where there is one."""
        messages = [] if system is None else [Message.of("system", system)]
        messages.append(Message.of("user", question))
        if answer is not None:
            messages.append(Message.of("assistant", answer))
        return cls(tuple(messages))

    @property
    def prompt(self) -> Conversation:
        """The conversation up to its last user's message: what the assistant has to answer."""
        last = max(number for number, message in enumerate(self.messages) if message.role == "user")
        return Conversation(self.messages[: last + 1])

    def turns(self) -> Iterator[tuple[str, Message | None]]:
        """(what the user says, the assistant's answer); a system message is part of the first user's message."""
        messages = list(self.messages)
        prefix = messages.pop(0).text + "\n\n" if messages[0].role == "system" else ""
        for user in range(0, len(messages), 2):
            yield prefix + messages[user].text, messages[user + 1] if user + 1 < len(messages) else None
            prefix = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"messages": [message.as_dict() for message in self.messages]}


def _message(entry: Any, number: int) -> Message:
    """The message of a JSON object; `number` counts from 1, for errors."""
    try:
        if not isinstance(entry, Mapping):
            raise UserError("an object is expected")
        if unknown := [str(key) for key in entry if key not in ("role", "content")]:
            raise UserError(f"unknown key '{unknown[0]:.40}'; a message has role and content")
        role, content = entry.get("role"), entry.get("content")
        if role not in ROLES:
            raise UserError(f"role {role!r:.40}: known are {', '.join(ROLES)}")
        if not isinstance(content, (str, list)):
            raise UserError("content must be text or a list of parts")
        return Message.of(role, content if isinstance(content, str) else [_part(part) for part in content])
    except UserError as error:
        raise UserError(f"message {number}: {error}") from None


def _part(entry: Any) -> Part:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("text"), str):
        raise UserError('a part must be an object with "type" and "text"')
    if unknown := [str(key) for key in entry if key not in ("type", "text")]:
        raise UserError(f"unknown key '{unknown[0]:.40}' in a part")
    if entry.get("type") not in PART_TYPES:
        raise UserError(f"part of type {entry.get('type')!r:.40}: known are {', '.join(PART_TYPES)}")
    return Part(entry["type"], entry["text"])
