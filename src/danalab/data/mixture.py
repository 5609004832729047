"""Several data sets as one, in fixed shares: `--data a:0.7,b:0.3`.

Every block of 10,000 sequences holds each source exactly in its share, spread evenly. Each source keeps the order of
training on it alone with the same seed, so position p of the mixture is a pure function of the seed. Shares need not
match sizes: a small source repeats sooner.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

import numpy as np

from danalab.data.dataset import Dataset
from danalab.data.order.batches import Order, Rows, TokenBatch
from danalab.data.tokenizers import BUILT_IN, UNKNOWN, Tokenizer
from danalab.data.vocabulary import merge_vocabularies
from danalab.errors import UserError

BLOCK = 10_000


def parse_mixture(text: str) -> list[tuple[str, float]]:
    """(data set, weight) of each part of `a:0.7,b:0.3`, or of a single data set."""
    if "," not in text or os.path.exists(text):
        return [(text, 1.0)]
    pairs: list[tuple[str, float]] = []
    for part in text.split(","):
        name, _, weight = part.strip().rpartition(":")
        try:
            pairs.append((name, float(weight)))
        except ValueError:
            name = ""
        if not name:
            raise UserError(f"--data {text}: '{part}' has no weight; a mixture is written a:0.7,b:0.3")
    if len({name for name, _ in pairs}) < len(pairs):
        raise UserError(f"--data {text}: each data set must be named only once")
    block_counts([weight for _, weight in pairs])
    return pairs


def block_counts(weights: Sequence[float], block: int = BLOCK) -> list[int]:
    """Number of sequences from each source in a block: shares rounded to integers by largest remainder."""
    if not all(0 < weight < float("inf") for weight in weights):
        raise UserError(
            f"weights are {', '.join(f'{weight:g}' for weight in weights)}; each must be positive"
        )
    exact = [block * weight / sum(weights) for weight in weights]
    counts = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: counts[i] - exact[i])
    for i in by_remainder[: block - sum(counts)]:
        counts[i] += 1
    if min(counts) == 0:
        raise UserError(f"weight {min(weights):g}: less than one sequence of {block:,}")
    return counts


class MixedDataset(Dataset):
    """Several data sets in fixed shares; evaluation reads all rows of all of them."""

    def __init__(self, parts: Sequence[Dataset], weights: Sequence[float]):
        self.parts, self.weights = list(parts), [float(weight) for weight in weights]
        vocabulary = merge_vocabularies(parts)
        names = {part.tokenizer_name for part in parts} - {UNKNOWN}
        # Two tokenizers of one name (bpe-4096) may have been trained on different texts.
        trained = len(names) == 1 and parts[0].tokenizer_name not in BUILT_IN
        for part in parts[1:] if trained else ():
            if part.tokenizer.fingerprint != parts[0].tokenizer.fingerprint:
                raise UserError(
                    f"{part.name} and {parts[0].name}: two different tokenizers named {part.tokenizer_name}; "
                    "a mixture needs one tokenizer"
                )
        self._counts = block_counts(self.weights)
        shared = list(zip(self.parts, self._counts, strict=True))
        identity = "\n".join(f"{part.fingerprint} {count}" for part, count in shared)
        super().__init__(
            **asdict(vocabulary),
            path=Path(" + ".join(f"{part.path.name}:{count / BLOCK:g}" for part, count in shared)),
            split=parts[0].split,
            fingerprint=hashlib.sha256(f"mixture 2\n{identity}".encode()).hexdigest(),
            max_ids=[part.max_id for part in parts],
            open_split=lambda split: MixedDataset([part.open_split(split) for part in parts], weights),
        )
        self.n_tokens = sum(part.n_tokens for part in parts)
        self.n_files = sum(part.n_files for part in parts)
        named = zip(parts, self.weights, strict=True)
        self.location = ",".join(f"{part.location}:{share:g}" for part, share in named)

    @cached_property
    def samples(self) -> list[list[str]]:
        return [sample for part in self.parts for sample in part.samples]

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return self.parts[0].tokenizer

    def tokens_per_epoch(self, seq_len: int) -> int:
        return sum(part.tokens_per_epoch(seq_len) for part in self.parts)

    def order(self, seed: int, seq_len: int) -> Order:
        orders = [part.order(seed, seq_len) for part in self.parts]
        for part, order in zip(self.parts, orders, strict=True):
            if order.n < 1:
                raise UserError(
                    f"{part.title}: shorter than one sequence of {seq_len} tokens; take a smaller seq-len"
                )
        return MixedOrder(orders, self._counts)

    def rows(self, seq_len: int) -> Rows:
        return ConcatenatedRows([part.rows(seq_len) for part in self.parts])

    def check_vocab(self, vocab_size: int) -> None:
        for part in self.parts:
            part.check_vocab(vocab_size)


class MixedOrder:
    """Numbers of the rows of several sources, concatenated, in fixed shares: an `Order`."""

    def __init__(self, orders: Sequence[Order], counts: Sequence[int]):
        """`counts`: of each source in a block, which they fill evenly: the j-th of c rows lies near (j + 1/2) / c."""
        self._orders, self._counts = list(orders), np.array(counts)
        owner = np.repeat(np.arange(len(counts)), counts)
        rank = np.concatenate([np.arange(count) for count in counts])
        places = np.argsort((rank + 0.5) / self._counts[owner], kind="stable")
        self._owner, self._rank = owner[places], rank[places]
        # An epoch ends when every source has been read at least once.
        self.n = max(-(-order.n * len(owner) // count) for order, count in zip(orders, counts, strict=True))
        self._offsets = np.cumsum([0, *(order.n for order in orders)])

    def __call__(self, begin: int, end: int) -> np.ndarray:
        owners, positions = self.positions(begin, end)
        rows = np.empty_like(positions)
        for number, order in enumerate(self._orders):
            mine = np.flatnonzero(owners == number)
            if len(mine):  # positions of one source follow each other
                first, last = positions[mine[0]], positions[mine[-1]]
                rows[mine] = self._offsets[number] + order(int(first), int(last) + 1)
        return rows

    def positions(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """(source, position in the source's own order) of the positions [begin, end), int64."""
        block, slot = np.divmod(np.arange(begin, end), len(self._owner))
        owners = self._owner[slot]
        return owners, self._rank[slot] + block * self._counts[owners]


class ConcatenatedRows:
    """The rows of several sources, concatenated."""

    def __init__(self, parts: Sequence[Rows]):
        self._parts, self._ends = list(parts), np.cumsum([part.n for part in parts])
        self.n, self.seq_len = int(self._ends[-1]), parts[0].seq_len

    def read(self, numbers: np.ndarray) -> TokenBatch:
        import torch

        inputs = torch.empty(len(numbers), self.seq_len, dtype=torch.int64)
        targets = torch.empty_like(inputs)
        owners = np.searchsorted(self._ends, numbers, side="right")
        for owner in np.unique(owners).tolist():
            mine = np.flatnonzero(owners == owner)
            part = self._parts[owner]
            places = torch.from_numpy(mine)
            inputs[places], targets[places] = part.read(numbers[mine] - (int(self._ends[owner]) - part.n))
        return inputs, targets
