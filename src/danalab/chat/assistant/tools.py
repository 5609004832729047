"""Functions that a request lets the model call, and the choice among them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from danalab.chat.assistant.errors import RequestError

NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON schema of the arguments."""

    def as_dict(self) -> dict[str, Any]:
        """For the prompt."""
        return {"name": self.name, "description": self.description, "parameters": self.parameters}

    @property
    def call_schema(self) -> dict[str, Any]:
        """JSON schema of a call."""
        return {
            "type": "object",
            "properties": {"name": {"const": self.name}, "arguments": self.parameters},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }


@dataclass(frozen=True)
class NamedTool:
    """The model must call this tool."""

    name: str


ToolChoice = Literal["none", "auto", "required"] | NamedTool


def call_schema(tools: Sequence[Tool]) -> dict[str, Any]:
    """JSON schema of a call of one of `tools`."""
    calls = [tool.call_schema for tool in tools]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


def check_tools(tools: Sequence[Tool], choice: ToolChoice) -> None:
    """Check that names are unique and that a required call is possible.

    Raises:
        RequestError: names the field at fault.
    """
    names = [tool.name for tool in tools]
    if twice := {name for name in names if names.count(name) > 1}:
        raise RequestError(400, f"'tools': two functions have the name {min(twice)!r}", param="tools")
    if isinstance(choice, NamedTool) and choice.name not in names:
        raise RequestError(400, f"'tool_choice': no function {choice.name!r:.80} among the tools", param="tool_choice")
    if choice == "required" and not tools:
        raise RequestError(400, "'tool_choice' is required, but there are no tools", param="tool_choice")
