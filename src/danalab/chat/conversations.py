"""Conversations: files of them, and their tokens with the mask of what the model learns.

    a line of JSONL -> messages (`danalab.chat.messages`) -> conversation -> ids and mask

    ids   bos user_start question user_end assistant_start answer assistant_end user_start ...
    mask   0      0          0        0           0           1         1           0
    an answer with a tool call:  text  python_start 12*7 python_end  output_start 84 output_end  text

Order of roles: an optional system message, then user and assistant in turn, either of them first. The mask is 1 on what
the assistant writes: its text, its tool calls with their marks, and the end of its message; it is 0 on the output of
tools, which is given to it. Text that spells a special token is encoded as characters.
"""

from __future__ import annotations

import json
import logging
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from danalab.chat.messages import Message, Part, PartType, read_messages
from danalab.data.tokenizers.base import CHAT_SPECIALS, EOS, Tokenizer
from danalab.errors import UserError
from danalab.files import impossible_path, parse_json

SPECIAL_TOKENS: dict[str, str] = {"bos": EOS, **{spelling.strip("<|>"): spelling for spelling in CHAT_SPECIALS}}
"""Name -> spelling: bos, user_start, user_end, assistant_start, assistant_end, python_start, python_end, output_start,
output_end. bos is the token that also separates documents, so a conversation starts as every document does."""
CHAT_STAGES = ("mid", "sft", "rl")
"""Stages of training that teach them to a model; its runs are asked as a chat where nothing else is said."""
MAX_LINE_BYTES = 1 << 24
"""A longer line is refused: it is no conversation, and the file perhaps no JSONL."""
MAX_ARRAY_BYTES = 1 << 30
"""A file that is one JSON array is read as a whole."""
log = logging.getLogger(__name__)
_MARKS = {"python": ("python_start", "python_end"), "python_output": ("output_start", "output_end")}


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
        """A conversation from the JSON of a line, in any form of `danalab.chat.messages`.

        A UserError names the origin `where`, e.g. "FILE line 3", and the first thing that is wrong.
        """
        try:
            return cls(read_messages(value).messages)
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
        """For JSON."""
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
            read = read_messages(value)
            conversation = Conversation(read.messages)
        except UserError as error:
            told = str(error) if str(error).startswith(where) else f"{where}: {error}"
            if skipped is None:
                raise UserError(told) from None
            skipped.append(UserError(told))
            continue
        ignored |= dict.fromkeys(read.ignored)
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


class Rendered(NamedTuple):
    """A conversation as tokens."""

    ids: list[int]
    mask: list[int]
    """1 where the assistant speaks, as many as ids."""


class ChatFormat:
    """The format of conversations in the tokens of one tokenizer.

    Attributes:
        bos, user_start, ...: ids of the special tokens by name.
        n_ids: ids from here on (padding of the vocabulary) are never part of a conversation.
    """

    bos: int
    user_start: int
    user_end: int
    assistant_start: int
    assistant_end: int
    python_start: int
    python_end: int
    output_start: int
    output_end: int

    def __init__(self, tokenizer: Tokenizer):
        """Raises UserError if the tokenizer lacks special tokens; `extend_tokenizer` adds them."""
        if missing := missing_specials(tokenizer):
            raise UserError(f"tokenizer {tokenizer.name}: no special token {missing[0]}; danalab sft adds it to a run")
        self.tokenizer = tokenizer
        for name, spelling in SPECIAL_TOKENS.items():
            setattr(self, name, tokenizer.specials[spelling])
        self.n_ids = max(tokenizer.n_tokens, 1 + max(tokenizer.specials.values()))
        self._specials = frozenset(tokenizer.specials.values())

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """Ids that end the assistant's message: assistant_end, and bos, which begins another document."""
        return self.assistant_end, self.bos

    def render(self, conversation: Conversation) -> Rendered:
        """The ids of a conversation with the mask of what the assistant says."""
        return self.render_all([conversation])[0]

    def render_prompt(self, conversation: Conversation) -> list[int]:
        """The ids after which the assistant speaks.

        After a user's message they end with assistant_start. A conversation that ends with an assistant's message is
        continued within this message: after a text that it has begun, or after the output of a tool.
        """
        (ids, _), answered = self.render_all([conversation], is_open=True)[0], conversation.messages[-1].role != "user"
        return ids if answered else [*ids, self.assistant_start]

    def parse(self, ids: Iterable[int]) -> Message | None:
        """The assistant's message in ids that a model produced after `render_prompt`; None where it said nothing.

        Reads to the first stop token. Never fails: a call that is not closed ends with the ids, marks out of place and
        ids without text are left out.
        """
        opens: dict[int, PartType] = {self.python_start: "python", self.output_start: "python_output"}
        parts: list[tuple[PartType, list[int]]] = [("text", [])]
        for id_ in ids:
            if id_ in self.stop_tokens:
                break
            if id_ in opens:
                parts.append((opens[id_], []))
            elif id_ in (self.python_end, self.output_end):
                parts.append(("text", []))
            elif id_ not in self._specials and 0 <= id_ < self.n_ids:
                parts[-1][1].append(id_)
        found: list[Part] = []
        for kind, piece in parts:
            text = self.tokenizer.decode(piece)
            if kind == "python_output" and (not found or found[-1].type != "python"):
                kind = "text"
            if text.strip() or (kind == "text" and text) or kind == "python_output":
                found.append(Part(kind, text))
        return Message.of("assistant", found) if any(part.text.strip() for part in found) else None

    def render_all(self, conversations: Sequence[Conversation], *, is_open: bool = False) -> list[Rendered]:
        """`render` of each, encoded together, which is faster; `is_open`: an assistant's last message has no end."""
        pieces: list[list[tuple[str | int, int]]] = []
        for conversation in conversations:
            pieces.append(row := [(self.bos, 0)])
            for question, answer in conversation.turns():
                if question is not None:
                    row += [(self.user_start, 0), (question, 0), (self.user_end, 0)]
                if answer is not None:
                    row += [(self.assistant_start, 0), *self._answer(answer)]
                    row.append((self.assistant_end, int(answer.parts[-1].trained)))
            if is_open and conversation.messages[-1].role == "assistant":
                row.pop()  # the end of the last message
        texts = [piece for row in pieces for piece, _ in row if isinstance(piece, str)]
        encoded = iter(self.tokenizer.encode_batch(texts))
        rendered = []
        for row in pieces:
            ids: list[int] = []
            mask: list[int] = []
            for piece, said in row:
                found = [piece] if isinstance(piece, int) else next(encoded)
                ids += found
                mask += [said] * len(found)
            rendered.append(Rendered(ids, mask))
        return rendered

    def _answer(self, message: Message) -> list[tuple[str | int, int]]:
        pieces: list[tuple[str | int, int]] = []
        for part in message.parts:
            said = int(part.trained and part.type != "python_output")
            marks = _MARKS.get(part.type)
            if marks is None:
                pieces.append((part.text, said))
            else:
                start, end = (getattr(self, name) for name in marks)
                pieces += [(start, said), (part.text, said), (end, said)]
        return pieces


def render_conversation(tokenizer: Tokenizer, conversation: Conversation) -> Rendered:
    """The ids of a conversation, and what the assistant says; UserError: the tokenizer lacks special tokens."""
    return ChatFormat(tokenizer).render(conversation)


def missing_specials(tokenizer: Tokenizer) -> list[str]:
    """The spellings that a tokenizer does not know, in order."""
    return [spelling for spelling in SPECIAL_TOKENS.values() if spelling not in tokenizer.specials]
