"""Files of conversations: JSONL, one conversation a line."""

import stat
from collections.abc import Iterator
from pathlib import Path

from danalab.chat.conversations.conversation import Conversation
from danalab.errors import UserError

MAX_LINE_BYTES = 1 << 24
"""A longer line is refused: it is no conversation, and the file perhaps no JSONL."""


def iter_conversations(file: str | Path) -> Iterator[tuple[int, Conversation]]:
    """(line number from 1, conversation) of each line that is not blank.

    Raises:
        UserError: no such file, or a line that holds no conversation: names file, line and reason.
    """
    path = Path(file)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UserError(f"{path}: not a regular file; a JSONL file is expected, one conversation a line")
        with path.open("rb") as lines:
            for number in range(1, 1 << 62):
                line = lines.readline(MAX_LINE_BYTES + 1)
                if not line:
                    return
                where = f"{path} line {number}"
                if len(line) > MAX_LINE_BYTES:
                    raise UserError(f"{where}: longer than {MAX_LINE_BYTES:,} bytes; is this one conversation a line?")
                try:
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise UserError(f"{where}: not UTF-8: {error.reason} at byte {error.start}") from None
                if text.strip():
                    yield number, Conversation.from_json(text, where)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:  # a null byte in the path
        raise error if isinstance(error, UserError) else UserError(f"{str(path)!r}: {error}") from error


def read_conversations(file: str | Path) -> list[Conversation]:
    """All conversations of a file.

    Raises:
        UserError: as of `iter_conversations`, or the file has none.
    """
    found = [conversation for _, conversation in iter_conversations(file)]
    if not found:
        raise UserError(f"{file}: no conversation in it")
    return found
