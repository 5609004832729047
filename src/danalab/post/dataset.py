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
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

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
        splits: Mapping[str, Sequence[TokenizedConversation]],
        split: str,
        chat: ChatFormat,
        *,
        seq_len: int,
        masked: bool,
    ):
        conversations = splits[split]
        ids, said = (np.concatenate(part) for part in zip(*conversations, strict=True))
        ends = np.cumsum([len(each.ids) for each in conversations])
        digest = hashlib.sha256(ids.tobytes() + said.tobytes() + ends.tobytes()).hexdigest()
        identity = f"conversations 1\n{chat.tokenizer.fingerprint}\n{digest}\n{masked}"
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
            shortest = min(len(each.ids) for each in conversations)
            raise UserError(
                f"{self.path} ({split}): no whole turn with an answer within --seq-len {seq_len}; the shortest "
                f"conversation has {shortest} tokens"
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


class TokenizedConversation(NamedTuple):
    """A conversation of n tokens."""

    ids: np.ndarray
    """int32 [n]."""
    said: np.ndarray
    """Whether the assistant says a token, so that it is a target of the loss, bool [n]."""


def tokenize(words: Sequence[str], chat: ChatFormat) -> list[TokenizedConversation]:
    """The conversations of files (FILE.jsonl) and tasks (NAME[:KEY=VALUE,...]); a UserError names a malformed line."""
    found: list[TokenizedConversation] = []
    for word in words:
        before, pending = len(found), iter(conversations_of(word))
        while group := list(islice(pending, _TOGETHER)):
            for ids, mask in _rendered(group, chat):
                found.append(TokenizedConversation(np.array(ids, np.int32), np.array(mask, bool)))
        if len(found) == before:
            raise UserError(f"{word}: no conversation in it")
    if not found:
        raise UserError("no conversations: give --data FILE.jsonl, or the name of a task")
    return found


def conversations_of(word: str) -> Iterable[tuple[str, Conversation]]:
    """(place, conversation) of a file, or of a task; the name of a task is one also beside a file of this name."""
    name, is_path = word.partition(":")[0], word.endswith((".jsonl", ".json")) or "/" in word
    is_file = Path(word).is_file() or (is_path and ":" not in word)
    if is_file and name not in TASKS:
        return iter_conversations(word)
    task, _ = make_task(word, size=TASK_CONVERSATIONS)
    return ((f"task {word}, problem {i}", task.problem(i).conversation()) for i in range(len(task)))


def _rendered(group: Sequence[tuple[str, Conversation]], chat: ChatFormat) -> list[Rendered]:
    try:
        return chat.render_all([conversation for _, conversation in group])
    except UserError as error:  # a character that the tokenizer lacks: find it
        if len(group) == 1:
            raise UserError(f"{group[0][0]}: {error}") from None
        return [found for each in group for found in _rendered([each], chat)]


def split(
    conversations: Sequence[TokenizedConversation], share: float, key: bytes
) -> tuple[list[TokenizedConversation], list[TokenizedConversation]]:
    """(the others, a random `share` of at least one), by a keyed permutation; UserError: fewer than two."""
    n = len(conversations)
    if n < 2:
        raise UserError("one conversation cannot be split for validation: give more, or --val-data")
    count = min(max(1, round(share * n)), n - 1)
    chosen = set(Permutation(n, key)(np.arange(n))[:count].tolist())
    others = [each for number, each in enumerate(conversations) if number not in chosen]
    return others, [conversations[number] for number in sorted(chosen)]


class ConversationRows:
    """Rows of `seq_len` positions for `danalab.data.order.batches`; `masked`: only the assistant's are targets."""

    def __init__(
        self, conversations: Sequence[TokenizedConversation], chat: ChatFormat, seq_len: int, *, masked: bool
    ):
        self.seq_len, self._bos = seq_len, chat.bos
        fits: list[tuple[np.ndarray, np.ndarray]] = []
        self.truncated = 0
        for ids, said in conversations:
            ends = np.flatnonzero(ids == chat.assistant_end) + 1
            length = int(ends[ends <= seq_len + 1].max(initial=0))
            if length == 0 or (masked and not said[:length].any()):  # it would fill a row and teach nothing
                continue
            fits.append((ids[: length - 1], np.where(said | (not masked), ids, IGNORED)[1:length]))
            self.truncated += length < ends[-1]
        self.dropped = len(conversations) - len(fits)
        # Equal lengths in a random order: neighbours in a file would share rows.
        order = Permutation(len(fits), b"conversations")(np.arange(len(fits))).tolist() if fits else []
        lengths = np.array([len(fits[number][0]) for number in order], np.int64)
        row = best_fit(lengths, seq_len)
        self.n = int(row.max(initial=-1)) + 1
        self._rows: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in range(self.n)]
        for number, owner in zip(order, row.tolist(), strict=True):
            self._rows[owner].append(fits[number])
        filled = int(lengths.sum()) / max(1, self.n * seq_len)
        self.packing = (
            f"{len(fits):,} conversations in {self.n:,} rows, {filled:.1%} full; {self.truncated:,} truncated at a "
            f"turn, {self.dropped:,} without an answer that fits left out"
        )

    def read(self, numbers: np.ndarray) -> TokenBatch:
        """See `Rows`."""
        inputs = np.full((len(numbers), self.seq_len), self._bos, np.int64)
        targets = np.full_like(inputs, IGNORED)
        for index, number in enumerate(numbers.tolist()):
            at = 0
            for given, wanted in self._rows[number]:
                inputs[index, at : at + len(given)], targets[index, at : at + len(given)] = given, wanted
                at += len(given)
        return torch.from_numpy(inputs), torch.from_numpy(targets)


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
