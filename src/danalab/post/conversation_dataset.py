"""Conversations as a data set of the trainer: rows in a shuffled order that depends on seed and step alone."""

import hashlib
from functools import lru_cache, partial
from pathlib import Path

from danalab.chat.conversations import ChatFormat
from danalab.data import Dataset
from danalab.data.formats.shards import TokenStore
from danalab.data.mixture import MixedDataset
from danalab.data.order.windows import Sequences
from danalab.data.tokenizers import Tokenizer
from danalab.errors import UserError
from danalab.post.packing import ConversationRows
from danalab.post.tokenized import TokenizedConversations


class ConversationDataset(Dataset):
    """One split of a list of conversations; `n_tokens` counts all positions of its rows, padding included."""

    def __init__(
        self,
        splits: dict[str, TokenizedConversations],
        split: str,
        chat: ChatFormat,
        *,
        seq_len: int,
        masked: bool,
        name: str,
    ):
        """Args:
            splits: conversations of "train" and "val".
            seq_len: positions of a row.
            masked: see `ConversationRows`.
            name: the source, for records and messages.

        Raises:
            UserError: no conversation fits in a row.
        """
        conversations = splits[split]
        identity = f"conversations 1\n{chat.tokenizer.fingerprint}\n{conversations.sha256}\n{masked}"
        super().__init__(
            Path(name),
            split,
            TokenStore([], name),
            vocab_size=chat.tokenizer.vocab_size,
            eos_id=chat.bos,
            fingerprint=hashlib.sha256(identity.encode()).hexdigest(),
            max_ids=[chat.n_ids - 1],
            tokenizer_name=chat.tokenizer.name,
            open_split=partial(_open_split, splits, chat, seq_len, masked, name),
        )
        self._chat, self._least = chat, chat.n_ids
        self._packed_rows = lru_cache(maxsize=2)(partial(ConversationRows, conversations, chat, masked=masked))
        rows = self.rows(seq_len)
        self.counts = rows.counts
        if rows.n == 0:
            shortest = int((conversations.ends - conversations.starts).min())
            raise UserError(
                f"{name} ({split}): no conversation has a whole turn within --seq-len {seq_len}; the shortest has "
                f"{shortest} tokens"
            )
        self.n_tokens = rows.n * seq_len

    @property
    def tokenizer(self) -> Tokenizer:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The tokenizer with the special tokens of conversations."""
        return self._chat.tokenizer

    @property
    def location(self) -> str:
        """See `Dataset.location`: the words that were given."""
        return str(self.path)

    @property
    def least_vocab_size(self) -> int:
        """See `Dataset.least_vocab_size`."""
        return self._least

    def rows(self, seq_len: int) -> ConversationRows:
        """See `Dataset.rows`."""
        return self._packed_rows(seq_len)

    def packed(self, seq_len: int, key: bytes, name: str) -> Sequences:
        """Not possible: rows hold whole conversations already.

        Raises:
            UserError: always.
        """
        raise UserError(f"{name}: conversations are packed already; leave --packing out")

    def check_vocab(self, vocab_size: int) -> None:
        """See `Dataset.check_vocab`."""
        if self._least > vocab_size:
            raise UserError(
                f"{self.path}: its special tokens need a vocabulary of {self._least}, the model has {vocab_size}"
            )


def _open_split(
    splits: dict[str, TokenizedConversations], chat: ChatFormat, seq_len: int, masked: bool, name: str, split: str
) -> ConversationDataset:
    return ConversationDataset(splits, split, chat, seq_len=seq_len, masked=masked, name=name)


class ReplayedDataset(MixedDataset):
    """Conversations with a share of another data set; an epoch is one pass over the conversations."""

    def __init__(self, conversations: ConversationDataset, replay: Dataset, share: float):
        """Args: share: of the rows that are from `replay`.

        Raises:
            UserError: the two have different tokenizers.
        """
        super().__init__([conversations, replay], [1 - share, share])
        self.n_tokens = round(conversations.n_tokens / (1 - share))
        self.counts = conversations.counts
