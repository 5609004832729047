"""Messages and tools of OpenAI's APIs as a `Conversation`.

    system  "... You can call these functions: [...]"
    user    question
    assistant  text  python {"name": ..., "arguments": {...}}  python_output RESULT  text ...

Calls and their results are parts of the assistant's message, as in the data that a model is trained on. A later system
message is part of the next user's message, as the first one is in our format.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from danalab.chat.conversations import Conversation, Message, Part
from danalab.chat.tools import Calculation
from danalab.errors import UserError
from danalab.serve.fields import Function, NamedFunction, PastCalculation, RequestError, ToolChoice
from danalab.serve.readers import answer_parts

NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass
class ConversationBuilder:
    """Collects messages in order; errors name the place that the caller gives."""

    system: list[str] = field(default_factory=list)
    turns: list[tuple[str, list[Part | str]]] = field(default_factory=list)
    """(role, parts); a text in place of a part is the id of the call before it, whose result is still missing."""

    def add_text(self, role: str, text: str) -> None:
        """What one side says; neighbouring messages of one role become one."""
        if role in ("system", "developer"):
            if not self.turns:
                self.system.append(text)
                return
            role = "user"
        self.add_parts(role, [Part("text", text)])

    def add_parts(self, role: str, parts: Sequence[Part]) -> None:
        """The same in parts."""
        known = self._parts(role)
        if role == "user" and known:
            known.append(Part("text", "\n\n"))
        known.extend(parts)

    def add_answer(self, text: str, calculations: Sequence[PastCalculation] | None) -> None:
        """What the assistant has said, with its calculations as the model is trained on them."""
        past = [(each.position, Calculation(each.expression, each.result, ())) for each in calculations or ()]
        if text or past:
            self.add_parts("assistant", answer_parts(text, past))

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

    def build(self, tools: Sequence[Function], where: str) -> Conversation:
        """The conversation; RequestError at `where`: a call without result, roles out of order, or an empty message."""
        system = [*self.system, *([_describe(tools)] if tools else [])]
        try:
            messages = [Message.of("system", "\n\n".join(system))] if any(map(str.strip, system)) else []
            for role, parts in self.turns:
                if missing := [part for part in parts if isinstance(part, str)]:
                    raise UserError(f"the call {missing[0]!r:.80} has no result")
                messages.append(Message.of(role, parts))  # pyright: ignore[reportArgumentType]
            return Conversation(tuple(messages))
        except UserError as error:
            raise RequestError(400, f"'{where}': {error}", param=where) from None

    def _parts(self, role: str) -> list[Part | str]:
        if not self.turns or self.turns[-1][0] != role:
            self.turns.append((role, []))
        return self.turns[-1][1]


def without_oldest_turn(conversation: Conversation) -> Conversation | None:
    """The conversation without its first question and answer; None if there is only one question."""
    messages = conversation.messages
    first = 1 if messages[0].role == "system" else 0
    if len(messages) - first < 3:
        return None
    return Conversation(messages[:first] + messages[first + 2 :])


def _describe(tools: Sequence[Function]) -> str:
    listed = [
        {"name": each.name, "description": each.description or "", "parameters": each.parameters or NO_ARGUMENTS}
        for each in tools
    ]
    return (
        f"You can call these functions:\n{json.dumps(listed)}\n"
        'A call is a JSON object {"name": NAME, "arguments": {...}}; its result follows.'
    )


def call_schema(tools: Sequence[Function]) -> dict[str, Any]:
    """JSON schema of a call of one of `tools`."""
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": tool.name}, "arguments": tool.parameters or NO_ARGUMENTS},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


def check_tools(tools: Sequence[Function], choice: ToolChoice | NamedFunction) -> None:
    """Check that names are unique and a required call is possible; a RequestError names the field at fault."""
    names = [tool.name for tool in tools]
    if twice := {name for name in names if names.count(name) > 1}:
        raise RequestError(400, f"'tools': two functions have the name {min(twice)!r}", param="tools")
    if isinstance(choice, NamedFunction) and choice.name not in names:
        raise RequestError(400, f"'tool_choice': no function {choice.name!r:.80} among the tools", param="tool_choice")
    if choice == "required" and not tools:
        raise RequestError(400, "'tool_choice' is required, but there are no tools", param="tool_choice")
