"""Conversations, and files of them. One reader serves training, terminal and server.

    OpenAI      {"messages": [{"role": "user", "content": "text" or [parts]}, ...], "tools": [...]}, or the bare list
    ShareGPT    {"conversations": [{"from": "human", "value": "text"}, ...]}
    Alpaca      {"instruction": "text", "input": "text", "output": "text"}
    pairs       {"prompt": "text" or [messages], "completion": "text" or [messages]}, {"question", "response"}

Order of roles: an optional system message, then user and assistant in turn, either of them first. Keys of a message
without effect are named.
"""

from __future__ import annotations

import json
import logging
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from danalab.chat.messages import AnyMessages, ConversationBuilder, FieldError, Function, Message, Part, ignored_fields
from danalab.errors import UserError, nearest
from danalab.files import impossible_path, parse_json

MAX_LINE_BYTES = 1 << 24
"""A longer line is refused: it is no conversation, and the file perhaps no JSONL."""
MAX_ARRAY_BYTES = 1 << 30
"""A file that is one JSON array is read as a whole."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Conversation:
    """An optional system message, then user and assistant in turn; UserError: another order, or no user's message."""

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
    def of(cls, value: Any, where: str = "") -> Conversation:
        """A conversation from the JSON of a line, in any form of the module's.

        A UserError names the origin `where`, e.g. "FILE line 3", and the first thing that is wrong.
        """
        try:
            return cls(read_messages(value)[0])
        except UserError as error:
            raise UserError(f"{where}: {error}" if where else str(error)) from None

    @classmethod
    def from_json(cls, line: str, where: str = "") -> Conversation:
        """A conversation from one line of a JSONL file. Arguments and errors as of `of`."""
        return cls.of(parse_json(line, where or "a conversation"), where)

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

    def as_clients_keep_it(self, choice: int) -> Conversation | None:
        """The conversation up to one of its answers, which `choice` picks, with the calculations before it left out.

        Most clients send back nothing of an earlier answer but its text. None: no answer follows a calculation, or one
        is nothing but a calculation.
        """
        shown = [message.shown for message in self.messages]
        hiding = [number for number, message in enumerate(self.messages) if shown[number] != message.parts]
        first = hiding[0] if hiding else len(shown)
        ends = [n for n, message in enumerate(self.messages) if n > first and message.role == "assistant"]
        if not ends or not all(shown):
            return None
        end = ends[choice % len(ends)]
        before = (Message.of(message.role, parts) for message, parts in zip(self.messages[:end], shown, strict=False))
        return Conversation((*before, self.messages[end]))

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


def iter_conversations(file: str | Path, skipped: list[UserError] | None = None) -> Iterator[tuple[int, Conversation]]:
    """(line number from 1, conversation) of each line that is not blank, or of each element of one JSON array.

    Raises UserError: file, line and what is wrong with it; with `skipped` what is wrong with a line is put there.
    """
    path, ignored = Path(file), dict[str, None]()
    for number, where, text in _lines(path):
        try:
            if isinstance(text, UserError):
                raise text
            value = parse_json(text, where) if isinstance(text, str) else text
            messages, names = read_messages(value)
            conversation = Conversation(messages)
        except UserError as error:
            told = str(error) if str(error).startswith(where) else f"{where}: {error}"
            if skipped is None:
                raise UserError(told) from None
            skipped.append(UserError(told))
            continue
        ignored |= dict.fromkeys(names)
        yield number, conversation
    if ignored:
        log.warning("%s: fields of messages without effect: %s", path, ", ".join(ignored))


def _lines(path: Path) -> Iterator[tuple[int, str, Any]]:
    """(number, place, text or what is wrong) of each line that is not blank; elements of an array over the file."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UserError(f"{path}: not a regular file; a JSONL file is expected, one conversation a line")
        with path.open("rb") as lines:
            for number in range(1, 1 << 62):
                line = lines.readline(MAX_LINE_BYTES + 1)
                if not line:
                    return
                where = f"{path} line {number}"
                if number == 1 and (elements := _array(path, line)) is not None:
                    yield from ((n, f"{path} entry {n}", each) for n, each in enumerate(elements, 1))
                    return
                if len(line) > MAX_LINE_BYTES:
                    reason = f"longer than {MAX_LINE_BYTES:,} bytes; is this one conversation a line?"
                    yield number, where, UserError(f"{where}: {reason}")
                    while line and not line.endswith(b"\n"):
                        line = lines.readline(MAX_LINE_BYTES)
                    continue
                try:
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    text = UserError(f"{where}: not UTF-8: {error.reason} at byte {error.start}")
                if isinstance(text, UserError) or text.strip():
                    yield number, where, text
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise error if isinstance(error, UserError) else impossible_path(path) from error


def _array(path: Path, line: bytes) -> list[Any] | None:
    """The elements of a file that is one JSON array, as Alpaca's and ShareGPT's are; None: lines, or a bare list."""
    if not line.lstrip(b"\xef\xbb\xbf \t").startswith(b"[") or path.stat().st_size > MAX_ARRAY_BYTES:
        return None
    try:
        first = json.loads(line.decode("utf-8-sig"))
        return (
            None if not first or not isinstance(first[0], dict) or "role" in first[0] or "from" in first[0] else first
        )
    except (ValueError, RecursionError):
        pass
    try:
        elements = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError):
        return None
    return elements if isinstance(elements, list) else None


def read_conversations(file: str | Path) -> list[Conversation]:
    """All conversations of a file. Raises UserError: as of `iter_conversations`, or the file has none."""
    found = [conversation for _, conversation in iter_conversations(file)]
    if not found:
        raise UserError(f"{file}: no conversation in it")
    return found


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


def read_messages(value: Any) -> tuple[tuple[Message, ...], list[str]]:
    """(messages, names of their fields without effect) of the JSON of a line, in any of the module's forms.

    UserError: the first thing that is wrong.
    """
    entries, tools = _as_openai(value)
    checked = _checked(AnyMessages, entries, "messages")
    functions = _checked(list[Function], tools, "tools")
    builder = ConversationBuilder()
    for number, message in enumerate(checked):
        builder.add(message, f"messages.{number}")
    ignored = dict.fromkeys(name for message in checked for name in ignored_fields(message))
    return builder.build(functions, "messages"), list(ignored)


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
    inner: Any = body
    steps = [step for step in error["loc"] if step != "body"]
    for number, step in enumerate(steps):
        if step in (inner if isinstance(inner, dict) else range(len(inner)) if isinstance(inner, list) else ()):
            path.append(step)
            inner = inner[step]
        elif error["type"] == "missing" and number == len(steps) - 1:
            path.append(step)
    return path


_adapter = lru_cache(maxsize=None)(TypeAdapter)
