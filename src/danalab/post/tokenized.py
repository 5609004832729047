"""Conversations as one stream of ids: from files and tasks, tokenized once.

The highest bit of an id is the mask: 1 where the assistant speaks. Tokens of a file are kept in the user's cache.
"""

import hashlib
import logging
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np

from danalab.chat.conversations import ChatFormat, Conversation, Rendered, iter_conversations
from danalab.data.formats import scan_cache
from danalab.data.order.permutation import Permutation
from danalab.errors import UserError

log = logging.getLogger(__name__)

SAID = np.uint32(1 << 31)
"""The bit of what the assistant says."""
TASK_CONVERSATIONS = 2000
"""Conversations that a generated task gives where its size is not given."""
_TOGETHER = 1000


@dataclass(frozen=True)
class TokenizedConversations:
    """A list of conversations."""

    coded: np.ndarray
    """Ids with the bit `SAID`, one conversation after the other, uint32."""
    ends: np.ndarray
    """The end of each conversation in `coded`, int64."""

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def starts(self) -> np.ndarray:
        """The start of each conversation in `coded`, int64."""
        return np.concatenate([np.zeros(1, np.int64), self.ends[:-1]])

    @cached_property
    def sha256(self) -> str:
        """Hash [hex] of the content."""
        return hashlib.sha256(self.coded.tobytes() + self.ends.tobytes()).hexdigest()

    def pick(self, numbers: np.ndarray) -> "TokenizedConversations":
        """Some of the conversations, in the order of their numbers."""
        starts = self.starts
        pieces = [self.coded[starts[number] : self.ends[number]] for number in numbers]
        return TokenizedConversations(np.concatenate(pieces), np.cumsum([len(piece) for piece in pieces]))

    def split(self, share: float, key: bytes) -> tuple["TokenizedConversations", "TokenizedConversations"]:
        """(the others, a random `share` of at least one), by a keyed permutation.

        Raises:
            UserError: fewer than two conversations.
        """
        if len(self) < 2:
            raise UserError("one conversation cannot be split for validation: give more, or --val-data")
        order = Permutation(len(self), key)(np.arange(len(self)))
        count = min(max(1, round(share * len(self))), len(self) - 1)
        return self.pick(np.sort(order[count:])), self.pick(np.sort(order[:count]))


def tokenize(words: Iterable[str], chat: ChatFormat) -> TokenizedConversations:
    """The conversations of files (FILE.jsonl) and tasks (NAME[:KEY=VALUE,...]) together.

    Raises:
        UserError: a malformed line (named with its reason), an unknown task, a file without conversations, or text that
            the tokenizer cannot encode.
    """
    parts = [_of_file(Path(word), chat) if _is_file(word) else _of_task(word, chat) for word in words]
    if not parts:
        raise UserError("no conversations: give --data FILE.jsonl, or the name of a task")
    offsets = np.cumsum([0, *(len(part.coded) for part in parts[:-1])])
    ends = [part.ends + offset for part, offset in zip(parts, offsets, strict=True)]
    return TokenizedConversations(np.concatenate([part.coded for part in parts]), np.concatenate(ends))


def _is_file(word: str) -> bool:
    return word.endswith((".jsonl", ".json")) or "/" in word.partition(":")[0]


def _of_file(file: Path, chat: ChatFormat) -> TokenizedConversations:
    key = None
    if file.is_file():
        key = scan_cache.file_key(file, "conversations 1", chat.tokenizer.fingerprint).removesuffix(".json")
        coded, ends = (scan_cache.load_array(f"{key}-{name}.npy") for name in ("ids", "ends"))
        if coded is not None and ends is not None:
            return TokenizedConversations(coded, ends)
    found = _encoded(((f"{file} line {number}", one) for number, one in iter_conversations(file)), chat)
    if not len(found):
        raise UserError(f"{file}: no conversation in it")
    if key is not None:
        scan_cache.save_array(f"{key}-ids.npy", found.coded)
        scan_cache.save_array(f"{key}-ends.npy", found.ends)
    return found


def _of_task(word: str, chat: ChatFormat) -> TokenizedConversations:
    from danalab.chat.tasks import make_task

    task, _ = make_task(word, size=TASK_CONVERSATIONS)
    numbered = ((f"task {word}, problem {i}", task.problem(i).conversation()) for i in range(len(task)))
    return _encoded(((where, Conversation.of(content, where)) for where, content in numbered), chat)


def _encoded(conversations: Iterable[tuple[str, Conversation]], chat: ChatFormat) -> TokenizedConversations:
    coded, ends = array("I"), array("q")
    for ids, mask in _rendered(conversations, chat):
        coded.extend(id_ | said << 31 for id_, said in zip(ids, mask, strict=True))
        ends.append(len(coded))
    return TokenizedConversations(np.array(coded, np.uint32), np.array(ends, np.int64))


def _rendered(conversations: Iterable[tuple[str, Conversation]], chat: ChatFormat) -> Iterator[Rendered]:
    pending = iter(conversations)
    while group := list(islice(pending, _TOGETHER)):
        try:
            yield from chat.render_all([conversation for _, conversation in group])
        except UserError:  # one text cannot be encoded: find it
            for where, conversation in group:
                try:
                    chat.render(conversation)
                except UserError as error:
                    raise UserError(f"{where}: {error}") from None
            raise
