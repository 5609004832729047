"""Conversations as a data set of the trainer: files and tasks -> ids with the mask of the loss -> packed rows.

    row    bos user_start ... assistant_end-1 | bos user_start ... | bos bos bos
    target user_start ...     assistant_end   | user_start ...     | none

A conversation of n ids takes n - 1 positions: its last id is only a target. Each begins with bos, at which the model's
document mask restarts attention and positions, so a conversation in a row is computed as if it were alone. One that is
longer than a row is cut after the last whole turn that fits; one without such a turn is left out. Both are counted.

The rows come in a shuffled order that depends on seed and step alone.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from danalab.chat.dialects import iter_conversations
from danalab.chat.marks import ChatFormat, Rendered
from danalab.chat.messages import Conversation
from danalab.chat.tasks import TASKS, make_task
from danalab.data import Dataset
from danalab.data.mixture import MixedDataset
from danalab.data.order.batches import TokenBatch
from danalab.data.order.permutation import Permutation
from danalab.errors import UserError
from danalab.train.step.loss import IGNORED

TASK_CONVERSATIONS = 2000
"""Conversations that a generated task gives where its size is not given."""
_TOGETHER = 1000


class ChatDataset(Dataset):
    """One split of data in the tokens of a chat format; `path` is words that name them, `identity` its content's."""

    def __init__(
        self,
        words: Iterable[str],
        split: str,
        chat: ChatFormat,
        identity: bytes,
        open_split: Callable[[str], Dataset],
    ):
        name = ", ".join(words)
        super().__init__(
            name=Path(name).name,
            tokenizer_name=chat.tokenizer.name,
            vocab_size=chat.tokenizer.vocab_size,
            least_vocab_size=chat.n_ids,
            eos_id=chat.bos,
            path=Path(name),
            split=split,
            fingerprint=hashlib.sha256(identity).hexdigest(),
            max_ids=[chat.n_ids - 1],
            open_split=open_split,
        )
        self.chat, self.tokenizer, self.location = chat, chat.tokenizer, name

    def check_vocab(self, vocab_size: int) -> None:
        """Nothing to check: a stage gives its model rows for all special tokens."""


class ConversationDataset(ChatDataset):
    """One split of conversations, of `words`; `n_tokens` counts padding, too. UserError: none fits in a row."""

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
        self._packed_rows = lru_cache(maxsize=2)(
            partial(ConversationRows, conversations, chat, masked=masked)
        )
        rows = self.rows(seq_len)
        self.packing = rows.packing
        if rows.n == 0:
            shortest = int((conversations.ends - conversations.starts).min())
            raise UserError(
                f"{self.path} ({split}): no whole turn within --seq-len {seq_len}; shortest: {shortest}"
            )
        self.n_tokens = rows.n * seq_len

    def rows(self, seq_len: int) -> ConversationRows:
        return self._packed_rows(seq_len)


class ReplayedDataset(MixedDataset):
    """Conversations with a `share` of rows of another data set; an epoch is one pass over the conversations."""

    def __init__(self, conversations: ConversationDataset, replay: Dataset, share: float):
        super().__init__([conversations, replay], [1 - share, share])
        self.n_tokens = round(conversations.n_tokens / (1 - share))
        self.packing = conversations.packing

    def tokens_per_epoch(self, seq_len: int) -> int:
        return self.n_tokens


def tokenize(words: Sequence[str], chat: ChatFormat) -> TokenizedConversations:
    """The conversations of files (FILE.jsonl) and tasks (NAME[:KEY=VALUE,...]); a UserError names a malformed line."""
    parts = [_tokenized(_conversations_of(word), chat) for word in words]
    if not parts:
        raise UserError("no conversations: give --data FILE.jsonl, or the name of a task")
    for word, part in zip(words, parts, strict=True):
        if not len(part):
            raise UserError(f"{word}: no conversation in it")
    offsets = np.cumsum([0, *(len(part.ids) for part in parts[:-1])])
    ends = [part.ends + offset for part, offset in zip(parts, offsets, strict=True)]
    ids, said = (np.concatenate([getattr(part, name) for part in parts]) for name in ("ids", "said"))
    return TokenizedConversations(ids, said, np.concatenate(ends))


def _conversations_of(word: str) -> Iterable[tuple[str, Conversation]]:
    """(place, conversation) of a file, or of a task; the name of a task is one also beside a file of this name."""
    name, is_path = word.partition(":")[0], word.endswith((".jsonl", ".json")) or "/" in word
    is_file = Path(word).is_file() or (is_path and ":" not in word)
    if is_file and name not in TASKS:
        return iter_conversations(word)
    task, _ = make_task(word, size=TASK_CONVERSATIONS)
    return ((f"task {word}, problem {i}", task.problem(i).conversation()) for i in range(len(task)))


def _tokenized(conversations: Iterable[tuple[str, Conversation]], chat: ChatFormat) -> TokenizedConversations:
    ids, said, ends = array("i"), array("b"), array("q")
    pending = iter(conversations)
    while group := list(islice(pending, _TOGETHER)):
        for rendered in _rendered(group, chat):
            ids.extend(rendered.ids)
            said.extend(rendered.mask)
            ends.append(len(ids))
    return TokenizedConversations(np.array(ids, np.int32), np.array(said, bool), np.array(ends, np.int64))


def _rendered(group: Sequence[tuple[str, Conversation]], chat: ChatFormat) -> list[Rendered]:
    try:
        return chat.render_all([conversation for _, conversation in group])
    except UserError as error:  # a character that the tokenizer lacks: find it
        if len(group) == 1:
            raise UserError(f"{group[0][0]}: {error}") from None
        return [found for each in group for found in _rendered([each], chat)]


@dataclass(frozen=True)
class TokenizedConversations:
    """A list of conversations."""

    ids: np.ndarray
    """The tokens of one conversation after the other, int32."""
    said: np.ndarray
    """Whether the assistant says a token, so that it is a target of the loss, bool."""
    ends: np.ndarray
    """The end of each conversation in `ids`, int64."""

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def starts(self) -> np.ndarray:
        """The start of each conversation in `ids`, int64."""
        return np.concatenate([np.zeros(1, np.int64), self.ends[:-1]])

    @cached_property
    def sha256(self) -> str:
        """Hash [hex] of the content."""
        return hashlib.sha256(self.ids.tobytes() + self.said.tobytes() + self.ends.tobytes()).hexdigest()

    def pick(self, numbers: np.ndarray) -> TokenizedConversations:
        """Some of the conversations, in the order of their numbers."""
        starts = self.starts
        places = [np.arange(int(starts[number]), int(self.ends[number])) for number in numbers]
        chosen = np.concatenate(places)
        return TokenizedConversations(
            self.ids[chosen], self.said[chosen], np.cumsum([len(each) for each in places])
        )

    def split(self, share: float, key: bytes) -> tuple[TokenizedConversations, TokenizedConversations]:
        """(the others, a random `share` of at least one), by a keyed permutation; UserError: fewer than two."""
        n = len(self)
        if n < 2:
            raise UserError("one conversation cannot be split for validation: give more, or --val-data")
        count = min(max(1, round(share * n)), n - 1)
        kept = np.isin(np.arange(n), Permutation(n, key)(np.arange(n))[:count])
        return self.pick(np.flatnonzero(~kept)), self.pick(np.flatnonzero(kept))


class ConversationRows:
    """Rows of `seq_len` positions for `danalab.data.order.batches`; `masked`: only the assistant's are targets."""

    def __init__(
        self, conversations: TokenizedConversations, chat: ChatFormat, seq_len: int, *, masked: bool
    ):
        self.seq_len, self._masked, self._bos = seq_len, masked, chat.bos
        self._ids, self._said, all_starts = conversations.ids, conversations.said, conversations.starts
        whole = kept_lengths(conversations, chat.assistant_end, len(self._ids) + 1)
        kept = kept_lengths(conversations, chat.assistant_end, seq_len + 1)
        if masked:  # without a target a conversation would fill a row and teach nothing
            targets = np.concatenate([np.zeros(1, np.int64), np.cumsum(self._said)])
            kept[targets[all_starts + kept] == targets[all_starts]] = 0
        fits = np.flatnonzero(kept)
        # Equal lengths in a random order: neighbours in a file would share rows.
        fits = fits[Permutation(len(fits), b"conversations")(np.arange(len(fits)))] if len(fits) else fits
        lengths = kept[fits] - 1
        row = best_fit(lengths, seq_len)
        order = np.argsort(row, kind="stable")
        self._starts, self._lengths = all_starts[fits][order], lengths[order]
        self.n = int(row.max()) + 1 if len(row) else 0
        self._first = np.searchsorted(row[order], np.arange(self.n + 1))
        self.truncated, self.dropped = int(((kept > 0) & (kept < whole)).sum()), int((kept == 0).sum())
        filled = int(lengths.sum()) / max(1, self.n * seq_len)
        self.packing = (
            f"{len(fits):,} conversations in {self.n:,} rows, {filled:.1%} full; {self.truncated:,} truncated at a "
            f"turn, {self.dropped:,} without an answer that fits left out"
        )

    def read(self, numbers: np.ndarray) -> TokenBatch:
        """See `Rows`."""
        inputs = np.full((len(numbers), self.seq_len), self._bos, np.int64)
        targets = np.full_like(inputs, IGNORED)
        for index, row in enumerate(numbers.tolist()):
            at = 0
            for number in range(self._first[row], self._first[row + 1]):
                start, length = int(self._starts[number]), int(self._lengths[number])
                ids, said = (each[start : start + length + 1] for each in (self._ids, self._said))
                inputs[index, at : at + length] = ids[:-1]
                targets[index, at : at + length] = (
                    np.where(said[1:], ids[1:], IGNORED) if self._masked else ids[1:]
                )
                at += length
        return torch.from_numpy(inputs), torch.from_numpy(targets)


def kept_lengths(conversations: TokenizedConversations, assistant_end: int, limit: int) -> np.ndarray:
    """Ids of each conversation up to its last whole turn within `limit` ids, int64; 0 where the first does not fit."""
    turn_ends = np.flatnonzero(conversations.ids == assistant_end) + 1
    starts = conversations.starts
    last = np.searchsorted(turn_ends, np.minimum(conversations.ends, starts + limit), side="right") - 1
    end = np.where(last >= 0, turn_ends[np.maximum(last, 0)] if len(turn_ends) else 0, 0)
    return np.maximum(end - starts, 0)


def best_fit(lengths: np.ndarray, capacity: int) -> np.ndarray:
    """Row of each item, int64: the longest first, each into the fullest row that it fits in."""
    row = np.empty(len(lengths), np.int64)
    rows_by_gap: dict[int, list[int]] = {}
    gaps: list[int] = []
    """Gaps with a row, in order."""
    n_rows = 0
    for item in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[item])
        position = bisect_left(gaps, length)  # the gaps are sorted: the smallest that is wide enough
        if position < len(gaps):
            gap = gaps[position]
            chosen = rows_by_gap[gap].pop()
            if not rows_by_gap[gap]:
                del gaps[position]
        else:
            gap, chosen = capacity, n_rows
            n_rows += 1
        row[item] = chosen
        if left := gap - length:
            waiting = rows_by_gap.setdefault(left, [])
            if not waiting:
                insort(gaps, left)
            waiting.append(chosen)
    return row
