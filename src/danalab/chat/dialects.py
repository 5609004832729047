"""Files of conversations: JSONL, a conversation a line in any of these forms, or one JSON array of them.

OpenAI      {"messages": [{"role": "user", "content": "text" or [parts]}, ...], "tools": [...]}, or the bare list
ShareGPT    {"conversations": [{"from": "human", "value": "text"}, ...]}
Alpaca      {"instruction": "text", "input": "text", "output": "text"}
pairs       {"prompt": "text" or [messages], "completion": "text" or [messages]}, {"question", "response" or "answer"}
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from danalab.chat.messages import Conversation, read_functions, read_messages
from danalab.errors import UserError
from danalab.files import parse_json

FORMS = (
    'a line is {"messages": [...]}, a list of messages, {"conversations": [...]}, {"instruction", "output"} or '
    '{"prompt", "completion"}'
)
Line = Mapping[str, Any]


def openai(line: Line) -> Any:
    """Messages as OpenAI's fine-tuning has them; None: the line has another form."""
    return line.get("messages")


_SPEAKERS = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "observation": "tool",
    "function_response": "tool",
}


def sharegpt(line: Line) -> Any:
    """Messages of ShareGPT: "from" and "value" in place of "role" and "content"."""
    entries = line.get("conversations", line.get("conversation"))
    return [_said(each) for each in entries] if isinstance(entries, list) else entries


def _said(entry: Any) -> Any:
    if not isinstance(entry, Mapping) or "from" not in entry:
        return entry
    speaker, value = entry["from"], entry.get("value")
    if speaker == "function_call":
        call = parse_json(value, "the function call") if isinstance(value, str) else value
        return {"role": "assistant", "tool_calls": [{"function": call}]}
    role = _SPEAKERS.get(speaker, speaker) if isinstance(speaker, str) else speaker
    return {"role": role, "content": value, "weight": entry.get("weight")}


def alpaca(line: Line) -> Any:
    """An instruction with its input and output."""
    if line.get("instruction") is None or line.get("output") is None:
        return None
    question = f"{line['instruction']}\n\n{line['input']}" if line.get("input") else line["instruction"]
    return [*_one("user", question), *_one("assistant", line["output"])]


def pairs(line: Line) -> Any:
    """A question and an answer, each a text or a list of messages; a problem of a task without choices is one, too."""
    names = (("prompt", "completion"), ("prompt", "response"), ("question", "response"))
    problem = () if line.get("choices") else (("question", "solution"), ("question", "answer"))
    for asked, said in (*names, *problem):
        if line.get(asked) is not None and line.get(said) is not None:
            return [*_one("user", line[asked]), *_one("assistant", line[said])]
    return None


def _one(role: str, content: Any) -> list[Any]:
    return content if isinstance(content, list) else [{"role": role, "content": content}]


DIALECTS = (openai, sharegpt, alpaca, pairs)


def conversation_of(value: Any, where: str = "") -> Conversation:
    """The conversation of a line's JSON. UserError: the first thing that is wrong, after its origin `where`."""
    try:
        return _conversation_of(value)
    except UserError as error:
        raise UserError(f"{where}: {error}" if where else str(error)) from None


def _conversation_of(value: Any) -> Conversation:
    line = {"messages": value} if isinstance(value, list) else value
    if not isinstance(line, Mapping):
        raise UserError(f"{FORMS}, not {type(value).__name__}")
    entries = next((found for found in (dialect(line) for dialect in DIALECTS) if found is not None), None)
    if entries is None:
        raise UserError(f"{FORMS}; this one has {', '.join(map(str, line))[:80] or 'nothing'}")
    system = line.get("system") or line.get("system_prompt")
    if system and isinstance(entries, list):
        entries = [{"role": "system", "content": system}, *entries]
    tools = line.get("tools") or line.get("functions") or []
    tools = parse_json(tools, "'tools'") if isinstance(tools, str) else tools
    return read_messages(entries, read_functions(tools))


# ---- files ----


def iter_conversations(file: str | Path) -> Iterator[tuple[str, Conversation]]:
    """(place, conversation) of each line that is not blank, or of each element of one JSON array.

    Raises UserError: file, line and what is wrong with it.
    """
    try:
        with Path(file).open("rb") as content:
            yield from conversations_in(content, f"{file} ")
    except OSError as error:
        raise UserError(f"{file}: {error.strerror or error}") from error


def conversations_in(file: IO[bytes], name: str = "") -> Iterator[tuple[str, Conversation]]:
    """The same of an open file; `name`: what stands before the place in errors."""
    for where, value in _values(file, name):
        try:
            content = parse_json(value.decode("utf-8-sig"), where) if isinstance(value, bytes) else value
        except UnicodeDecodeError as error:
            raise UserError(f"{where}: not UTF-8: {error.reason}") from None
        yield where, conversation_of(content, where)


def _values(file: IO[bytes], name: str) -> Iterator[tuple[str, Any]]:
    """(place, line of bytes) of JSONL, or (place, element) of an array over several lines."""
    first = file.readline().lstrip(b"\xef\xbb\xbf \t")
    file.seek(0)
    elements = _elements(file.read()) if first.startswith(b"[") else None
    if elements is not None:
        yield from ((f"{name}entry {number}", each) for number, each in enumerate(elements, 1))
        return
    file.seek(0)
    for number, line in enumerate(file, 1):
        if line.strip():
            yield f"{name}line {number}", line


def _elements(data: bytes) -> list[Any] | None:
    """The elements of one JSON array of conversations; None: lines that are lists of messages."""
    try:
        elements = json.loads(data.decode("utf-8-sig", errors="replace"))
    except (ValueError, RecursionError):
        return None
    is_one = bool(elements) and isinstance(elements[0], dict) and bool({"role", "from"} & elements[0].keys())
    return [elements] if is_one else elements
