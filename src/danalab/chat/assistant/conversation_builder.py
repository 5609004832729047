"""Messages of OpenAI's APIs as a `Conversation`, and the tools of a request as part of it.

    system  "... You can call these functions: [...]"
    user    question
    assistant  text  python {"name": ..., "arguments": {...}}  python_output RESULT  text ...

Calls and their results are parts of the assistant's message, as in the data that a model is trained on.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from danalab.chat.assistant.errors import RequestError
from danalab.chat.assistant.tools import Tool
from danalab.chat.conversations import Conversation, Message, Part
from danalab.errors import UserError


@dataclass
class ConversationBuilder:
    """Collects messages in order; errors name the place that the caller gives."""

    system: list[str] = field(default_factory=list)
    turns: list[tuple[str, list[Part | str]]] = field(default_factory=list)
    """(role, parts); a text in place of a part is the id of the call before it, whose result is still missing."""

    def add_system(self, text: str, where: str) -> None:
        """Instructions; only before everything else."""
        if self.turns:
            raise RequestError(400, f"'{where}': a system message must come before the others", param=where)
        self.system.append(text)

    def add_text(self, role: str, text: str) -> None:
        """What the user or the assistant says; neighbouring messages of one role become one."""
        parts = self._parts(role)
        if role == "user" and parts:
            text = "\n\n" + text
        parts.append(Part("text", text))

    def add_call(self, call_id: str, name: str, arguments: str, where: str) -> None:
        """A call by the assistant."""
        try:
            values = json.loads(arguments)
        except (ValueError, RecursionError):
            raise RequestError(400, f"'{where}': the arguments are not valid JSON", param=where) from None
        self._parts("assistant").extend([Part("python", json.dumps({"name": name, "arguments": values})), call_id])

    def add_result(self, call_id: str, text: str, where: str) -> None:
        """The result of a call."""
        parts = self.turns[-1][1] if self.turns else []
        if call_id not in [part for part in parts if isinstance(part, str)]:
            raise RequestError(400, f"'{where}': no open call has the id {call_id!r:.80}", param=where)
        parts[parts.index(call_id)] = Part("python_output", text)

    def build(self, tools: Sequence[Tool], where: str) -> Conversation:
        """The conversation.

        Args: where: name of the field, for errors.
        Raises:
            RequestError: a call without result, roles out of order, or an empty message.
        """
        try:
            return self._build(tools)
        except UserError as error:
            raise RequestError(400, f"'{where}': {error}", param=where) from None

    def _build(self, tools: Sequence[Tool]) -> Conversation:
        system = [*self.system, *([_describe(tools)] if tools else [])]
        messages = [Message.of("system", "\n\n".join(system))] if any(map(str.strip, system)) else []
        for role, parts in self.turns:
            if missing := [part for part in parts if isinstance(part, str)]:
                raise UserError(f"the call {missing[0]!r:.80} has no result")
            messages.append(Message.of(role, parts))  # pyright: ignore[reportArgumentType]
        return Conversation(tuple(messages))

    def _parts(self, role: str) -> list[Part | str]:
        if not self.turns or self.turns[-1][0] != role:
            self.turns.append((role, []))
        return self.turns[-1][1]


def _describe(tools: Sequence[Tool]) -> str:
    return (
        f"You can call these functions:\n{json.dumps([tool.as_dict() for tool in tools])}\n"
        'A call is a JSON object {"name": NAME, "arguments": {...}}; its result follows.'
    )


def without_oldest_turn(conversation: Conversation) -> Conversation | None:
    """The conversation without its first question and answer; None if there is only one question."""
    messages = conversation.messages
    first = 1 if messages[0].role == "system" else 0
    if len(messages) - first < 3:
        return None
    return Conversation(messages[:first] + messages[first + 2 :])
