"""Conversations as a data set of the trainer: files and tasks -> ids with the mask of the loss -> packed rows.

The rows come in a shuffled order that depends on seed and step alone. Tokens of a file are kept in the user's cache.
"""

import hashlib
import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path

import numpy as np

from danalab.chat.conversations import MAX_LINE_BYTES, ChatFormat, Conversation, Rendered, iter_conversations
from danalab.chat.tasks import make_task
from danalab.data import Dataset
from danalab.data.formats import scan_cache
from danalab.data.formats.shards import TokenStore
from danalab.data.mixture import MixedDataset
from danalab.data.order.windows import Sequences
from danalab.errors import UserError
from danalab.post.packing import ConversationRows, TokenizedConversations

TASK_CONVERSATIONS = 2000
"""Conversations that a generated task gives where its size is not given."""
_TOGETHER = 1000


class ChatDataset(Dataset):
    """One split of data in the tokens of a chat format; `path` is the words that name them.

    Args:
        identity: of the split's content, for its fingerprint.
    """

    def __init__(
        self, words: Iterable[str], split: str, chat: ChatFormat, identity: bytes, open_split: Callable[[str], Dataset]
    ):
        name = ", ".join(words)
        super().__init__(
            Path(name),
            split,
            TokenStore([], name),
            vocab_size=chat.tokenizer.vocab_size,
            eos_id=chat.bos,
            fingerprint=hashlib.sha256(identity).hexdigest(),
            max_ids=[chat.n_ids - 1],
            tokenizer_name=chat.tokenizer.name,
            open_split=open_split,
        )
        self.chat, self.tokenizer = chat, chat.tokenizer

    @property
    def location(self) -> str:
        """See `Dataset.location`: the words that were given."""
        return str(self.path)

    @property
    def least_vocab_size(self) -> int:
        """See `Dataset.least_vocab_size`."""
        return self.chat.n_ids

    def check_vocab(self, vocab_size: int) -> None:
        """See `Dataset.check_vocab`."""
        if self.chat.n_ids > vocab_size:
            raise UserError(
                f"{self.path}: its special tokens need a vocabulary of {self.chat.n_ids}, the model has {vocab_size}"
            )


class ConversationDataset(ChatDataset):
    """One split of a list of conversations; `n_tokens` counts all positions of its rows, padding included.

    Args:
        words: the source, for records and messages.
        splits: conversations of "train" and "val".
        seq_len: positions of a row.
        masked: see `ConversationRows`.
    Raises:
        UserError: no conversation fits in a row.
    """

    def __init__(
        self,
        words: Sequence[str],
        splits: Mapping[str, TokenizedConversations],
        split: str,
        chat: ChatFormat,
        *,
        seq_len: int,
        masked: bool,
    ):
        conversations = splits[split]
        identity = f"conversations 1\n{chat.tokenizer.fingerprint}\n{conversations.sha256}\n{masked}"
        super().__init__(
            words,
            split,
            chat,
            identity.encode(),
            lambda split: ConversationDataset(words, splits, split, chat, seq_len=seq_len, masked=masked),
        )
        self._packed_rows = lru_cache(maxsize=2)(partial(ConversationRows, conversations, chat, masked=masked))
        rows = self.rows(seq_len)
        self.counts = rows.counts
        if rows.n == 0:
            shortest = int((conversations.ends - conversations.starts).min())
            raise UserError(
                f"{self.path} ({split}): no conversation has a whole turn within --seq-len {seq_len}; the shortest has "
                f"{shortest} tokens"
            )
        self.n_tokens = rows.n * seq_len

    def rows(self, seq_len: int) -> ConversationRows:
        """See `Dataset.rows`."""
        return self._packed_rows(seq_len)

    def packed(self, seq_len: int, key: bytes, name: str) -> Sequences:
        """Not possible: rows hold whole conversations already.

        Raises:
            UserError: always.
        """
        raise UserError(f"{name}: conversations are packed already; leave --packing out")


class ReplayedDataset(MixedDataset):
    """Conversations with a share of another data set; an epoch is one pass over the conversations.

    Args:
        share: of the rows that are from `replay`.
    Raises:
        UserError: the two have different tokenizers.
    """

    def __init__(self, conversations: ConversationDataset, replay: Dataset, share: float):
        super().__init__([conversations, replay], [1 - share, share])
        self.n_tokens = round(conversations.n_tokens / (1 - share))
        self.counts = conversations.counts


def tokenize(words: Iterable[str], chat: ChatFormat) -> TokenizedConversations:
    """The conversations of files (FILE.jsonl) and tasks (NAME[:KEY=VALUE,...]) together.

    Raises:
        UserError: a malformed line (named with its reason), an unknown task, a file without conversations, or text that
            the tokenizer cannot encode.
    """
    parts = [_of_file(Path(word), chat) if _has_conversations(word) else _of_task(word, chat) for word in words]
    if not parts:
        raise UserError("no conversations: give --data FILE.jsonl, or the name of a task")
    offsets = np.cumsum([0, *(len(part.coded) for part in parts[:-1])])
    ends = [part.ends + offset for part, offset in zip(parts, offsets, strict=True)]
    return TokenizedConversations(np.concatenate([part.coded for part in parts]), np.concatenate(ends))


def _has_conversations(word: str) -> bool:
    """Whether a word is a file of conversations; else a task, with settings or a file of problems."""
    name, _, settings = word.partition(":")
    if not Path(word).is_file():
        return not settings and (name.endswith((".jsonl", ".json")) or "/" in name)
    with Path(word).open("rb") as file:
        first = next(filter(bytes.strip, iter(lambda: file.readline(MAX_LINE_BYTES), b"")), b"")
    try:
        line = json.loads(first.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return not word.endswith(".gz")
    return not (isinstance(line, dict) and "question" in line and "messages" not in line)


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
