"""A data set on disk, opened for training: `open_dataset(path).batches(...)[step]`.

A folder with a `manifest.json` (written by `danalab data prepare`) or with bare token files.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path

import numpy as np

from danalab.data.bare import find_bare, open_bare, scan
from danalab.data.loader import Batches, Sequential
from danalab.data.manifest import NAME, Manifest
from danalab.data.store import TokenStore
from danalab.data.tokenizers import Tokenizer, load_tokenizer
from danalab.data.tokenizers.base import padded
from danalab.errors import UserError

_GPT2_TOKENS, _GPT2_EOS = 50_257, 50_256


class Dataset:
    """One split of a data set.

    Attributes:
        path: its folder.
        split: "train" or "val".
        n_tokens: tokens of the split.
        vocab_size: rows that a model's embedding needs (padded).
        eos_id: id that ends each document.
        fingerprint: SHA-256 [hex] of the split's content and its tokenizer.
        max_id: largest token id of the split.
        tokenizer_name: e.g. "gpt2".
    """

    def __init__(
        self,
        path: Path,
        split: str,
        store: TokenStore,
        *,
        vocab_size: int,
        eos_id: int,
        fingerprint: str,
        max_ids: list[int],
        tokenizer_name: str,
    ):
        """Use `open_dataset`. `max_ids`: largest id of each shard."""
        self.path = path
        self.split = split
        self.store = store
        self.n_tokens = store.n_tokens
        self.vocab_size = vocab_size
        self.eos_id = eos_id
        self.fingerprint = fingerprint
        self.max_id = max(max_ids, default=0)
        self.tokenizer_name = tokenizer_name
        self._max_ids = max_ids

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that wrote the tokens."""
        saved = self.path / "tokenizer.json"
        return load_tokenizer(self.path if saved.is_file() else self.tokenizer_name)

    @cached_property
    def token_bytes(self) -> np.ndarray:
        """Raw bytes of each id, int64 [vocab_size]; 0 for specials. For losses in bits per byte."""
        return self.tokenizer.token_bytes()

    def batches(self, *, seed: int, global_batch: int, seq_len: int, rank: int = 0, world_size: int = 1) -> Batches:
        """Training batches: `batches[step]` is (inputs, targets), int64 [global_batch / world_size, seq_len].

        Args:
            seed: chooses the order.
            global_batch: sequences a step, over all ranks.
            seq_len: tokens a sequence.
            rank, world_size: this rank's slice of each global batch.

        Raises:
            UserError: the split is smaller than one batch, or the ranks do not divide the batch.
        """
        return Batches(
            self.store,
            self.fingerprint,
            seed=seed,
            global_batch=global_batch,
            seq_len=seq_len,
            rank=rank,
            world_size=world_size,
        )

    def sequential(self, seq_len: int) -> Sequential:
        """All windows in order, for evaluation: `windows[i:j]` is (inputs, targets).

        Raises:
            UserError: the split is shorter than one sequence.
        """
        return Sequential(self.store, seq_len)

    def check_vocab(self, vocab_size: int) -> None:
        """Check that a model of `vocab_size` rows has one for every token.

        Raises:
            UserError: an id is too large; names the file and the place.
        """
        for number, largest in enumerate(self._max_ids):
            if largest >= vocab_size:
                shard = self.store.shards[number]
                found = self.store.first_at_least(vocab_size, number)
                place = f"token id {found[1]} at offset {found[0]}" if found else f"token id {largest}"
                raise UserError(
                    f"{shard.path}: {place} >= vocab_size {vocab_size}; "
                    f"the tokens were written with {self.tokenizer_name}, which needs another vocabulary"
                )

    def __repr__(self) -> str:
        return f"Dataset({str(self.path)!r}, {self.split!r}, {self.n_tokens:,} tokens, {self.tokenizer_name})"


def open_dataset(path: str | Path, split: str = "train") -> Dataset:
    """Open a split of a prepared data set, or of a folder of bare uint16 files; nothing is read into memory.

    Args:
        path: the folder.
        split: "train" or "val".

    Raises:
        UserError: no data set there, no such split, a shard that does not match its manifest, or ids outside of the
            vocabulary.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; make a data set with danalab data prepare")
    if (folder / NAME).is_file():
        return _open_prepared(folder, split)
    return _open_bare(folder, split)


def _open_prepared(folder: Path, split: str) -> Dataset:
    manifest = Manifest.read(folder)
    store = TokenStore(manifest.open_shards(folder, split), f"{folder} ({split})")
    entries = manifest.splits[split]
    return Dataset(
        folder,
        split,
        store,
        vocab_size=manifest.tokenizer.vocab_size,
        eos_id=manifest.tokenizer.eos_id,
        fingerprint=_fingerprint(manifest.tokenizer.fingerprint, [entry.sha256 for entry in entries]),
        max_ids=[entry.max_id for entry in entries],
        tokenizer_name=manifest.tokenizer.name,
    )


def _open_bare(folder: Path, split: str) -> Dataset:
    files = find_bare(folder, split)
    if not files:
        raise UserError(f"{folder}: neither {NAME} nor {split}.bin: not a data set, or one without the split '{split}'")
    shards = [open_bare(file) for file in files]
    if (folder / "tokenizer.json").is_file():
        tokenizer = load_tokenizer(folder)
        name, n_tokens, eos_id, origin = tokenizer.name, tokenizer.n_tokens, tokenizer.eos_id, tokenizer.fingerprint
    else:  # what nanoGPT and the FineWeb scripts of the literature write
        name, n_tokens, eos_id, origin = "gpt2", _GPT2_TOKENS, _GPT2_EOS, "gpt2"
    scans = [scan(shard) for shard in shards]
    dataset = Dataset(
        folder,
        split,
        TokenStore(shards, f"{folder} ({split})"),
        vocab_size=padded(n_tokens),
        eos_id=eos_id,
        fingerprint=_fingerprint(origin, [scan.sha256 for scan in scans]),
        max_ids=[scan.max_id for scan in scans],
        tokenizer_name=name,
    )
    dataset.check_vocab(dataset.vocab_size)
    return dataset


def _fingerprint(tokenizer: str, shards: list[str]) -> str:
    return hashlib.sha256("\n".join([tokenizer, *shards]).encode()).hexdigest()
