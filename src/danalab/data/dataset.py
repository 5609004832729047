"""A data set on disk, opened for training: `open_dataset(path).batches(...)[step]`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from danalab.data.formats.shards import TokenStore
from danalab.data.order.batches import Batches, Order, Rows, Sequential, Windows
from danalab.data.order.permutation import EndlessOrder
from danalab.data.tokenizers import UNKNOWN, Tokenizer, load_tokenizer, saved_tokenizer
from danalab.data.vocabulary import Vocabulary
from danalab.errors import UserError


@dataclass(eq=False, repr=False, kw_only=True)
class Dataset(Vocabulary):
    """One split of a data set; `open_dataset` makes it."""

    path: Path
    """Its folder."""
    split: str
    """"train" or "val"."""
    store: TokenStore = field(default_factory=lambda: TokenStore([]))
    """Its stream of tokens; empty where its rows are not cut from one."""
    fingerprint: str
    """SHA-256 [hex] of the split's content and its tokenizer."""
    max_ids: list[int]
    """Largest token id of each file."""
    open_split: Callable[[str], Dataset]
    """Opens another split of the same data; `UserError` if there is none."""

    def __post_init__(self) -> None:
        self.n_tokens, self.n_files = self.store.n_tokens, len(self.store.shards)
        self.location = str(self.path.resolve())
        """An argument of `open_data` that works from any folder."""

    @property
    def max_id(self) -> int:
        """Largest token id of the split."""
        return max(self.max_ids, default=0)

    @property
    def title(self) -> str:
        """The split in messages."""
        return f"{self.path} ({self.split})"

    @cached_property
    def samples(self) -> list[list[str]]:
        """(name, hash of some of its blocks) of each file; a changed one of the same size and time is found by it."""
        return [[shard.path.name, shard.sample()] for shard in self.store.shards]

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that wrote the tokens."""
        if saved_tokenizer(self.path) is None and self.tokenizer_name == UNKNOWN:
            raise UserError(f"{self.path}: no tokenizer.json beside the tokens")
        return load_tokenizer(self.path if saved_tokenizer(self.path) else self.tokenizer_name)

    @cached_property
    def token_bytes(self) -> np.ndarray:
        """Raw bytes of each id, int64 [vocab_size]; 0 for specials. For losses in bits per byte."""
        return self.tokenizer.token_bytes()

    def tokens_per_epoch(self, seq_len: int) -> int:
        """Tokens of one pass in sequences of `seq_len`; the rest of longer sequences is never read."""
        return self.n_tokens // self.sequence_length * seq_len if self.sequence_length else self.n_tokens

    def batches(
        self, *, seed: int, global_batch: int, seq_len: int, rank: int = 0, world_size: int = 1
    ) -> Batches:
        """Training batches: `batches[step]` is (inputs, targets), int64 [global_batch / world_size, seq_len].

        Args:
            seed: chooses the order.
            global_batch: sequences per step, over all ranks.
            seq_len: tokens per sequence.
            rank, world_size: this rank's slice of each global batch.
        Raises:
            UserError: the split is smaller than one batch, or the batch is not a multiple of the ranks.
        """
        rows, order = self.rows(seq_len), self.order(seed, seq_len)
        return Batches(rows, order, self.title, global_batch=global_batch, rank=rank, world_size=world_size)

    def sequential(self, seq_len: int) -> Sequential:
        """All sequences in order, for evaluation: `windows[i:j]` is (inputs, targets). `UserError` if there is none."""
        return Sequential(self.rows(seq_len), self.title)

    def order(self, seed: int, seq_len: int) -> Order:
        """The order in which training reads the rows, epoch after epoch."""
        key = f"danalab order 1|{self.fingerprint}|{seed}|{seq_len}|".encode()
        return EndlessOrder(self.rows(seq_len).n, key)

    def rows(self, seq_len: int) -> Rows:
        """The split as numbered sequences of `seq_len` tokens; of longer ones their beginning."""
        if self.sequence_length and seq_len > self.sequence_length:
            raise UserError(
                f"{self.title}: sequences have {self.sequence_length} tokens; "
                f"give --seq-len {self.sequence_length - 1} or less"
            )
        return Windows(self.store, seq_len, self.sequence_length)

    def check_vocab(self, vocab_size: int) -> None:
        """Check that every token id is below `vocab_size`. UserError: names the file and its largest id."""
        for number, largest in enumerate(self.max_ids):
            if largest >= vocab_size:
                raise UserError(
                    f"{self.store.shards[number].path}: token id {largest} >= vocab_size {vocab_size}; the tokens were "
                    f"written with {self.tokenizer_name}; give a larger --vocab-size, or leave it out"
                )

    def check_tokenizer(self, other: Tokenizer, named: str) -> None:
        """Check that the tokens mean the same to `other`, which may have more. UserError: begins with `named`."""
        own = self.tokenizer
        if own.token_bytes()[: own.n_tokens].tolist() != other.token_bytes()[: own.n_tokens].tolist():
            raise UserError(f"{named}: its tokens are of another tokenizer ({own.name})")
