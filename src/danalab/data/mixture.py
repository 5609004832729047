"""Several data sets as one, in fixed shares: `--data a:0.7,b:0.3`, or a YAML file `{a: 0.7, b: 0.3}`.

Every block of 10,000 sequences holds each source exactly in its share, spread evenly with a keyed jitter: the j-th of a
source's c sequences in a block lies near position j / c. Each source keeps the order of training on it alone with the
same seed. Position p of the mixture is therefore a pure function of the seed. Shares need not match sizes: a small
source repeats sooner.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from danalab.data.dataset import Dataset
from danalab.data.formats.shards import TokenStore
from danalab.data.order.batches import Rows, Sequences, Span, TokenBatch
from danalab.data.order.permutation import Permutation
from danalab.data.tokenizers import BUILT_IN, UNKNOWN, Tokenizer
from danalab.data.vocabulary import merge_vocabularies
from danalab.errors import UserError
from danalab.files import expand_home, read_yaml, validated

BLOCK = 10_000


def parse_mixture(text: str) -> list[tuple[str, float]] | None:
    """(data set, weight) of each part of `a:0.7,b:0.3` or of a YAML file; None for a single data set."""
    if Path(text).suffix in (".yaml", ".yml") and not os.path.isdir(text):
        weights = validated(dict[str, float], read_yaml(text), f"--data {text}")
        return _checked([(expand_home(name), weight) for name, weight in weights.items()], text)
    if "," not in text or os.path.exists(text):
        return None
    pairs: list[tuple[str, float]] = []
    for part in text.split(","):
        name, colon, weight = part.strip().rpartition(":")
        try:
            pairs.append((name, float(weight)))
        except ValueError:
            colon = ""
        if not (colon and name):
            raise UserError(f"--data {text}: '{part}' has no weight; a mixture is written a:0.7,b:0.3")
    return _checked(pairs, text)


def _checked(pairs: list[tuple[str, float]], text: str) -> list[tuple[str, float]]:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names) or not names:
        raise UserError(f"--data {text}: name at least one data set, and each only once")
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
        named = zip(parts, self._counts, strict=True)
        shares = " + ".join(f"{part.path.name}:{count / BLOCK:g}" for part, count in named)
        identity = "\n".join(
            f"{part.fingerprint} {count}" for part, count in zip(parts, self._counts, strict=True)
        )
        super().__init__(
            Path(shares),
            parts[0].split,
            TokenStore([], f"{shares} ({parts[0].split})"),
            vocab_size=vocabulary.vocab_size,
            eos_id=vocabulary.eos_id,
            fingerprint=hashlib.sha256(f"mixture 1\n{identity}".encode()).hexdigest(),
            max_ids=[part.max_id for part in parts],
            tokenizer_name=vocabulary.tokenizer_name,
            open_split=lambda split: MixedDataset(
                [part.open_split(split) for part in self.parts], self.weights
            ),
            sequence_length=vocabulary.sequence_length,
        )
        self.n_tokens, self.n_files = (
            sum(part.n_tokens for part in parts),
            sum(part.n_files for part in parts),
        )
        self.name, self.least_vocab_size = vocabulary.name, vocabulary.least_vocab_size
        self.location = ",".join(
            f"{part.location}:{share:g}" for part, share in zip(parts, self.weights, strict=True)
        )

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return self.parts[0].tokenizer

    def tokens_per_epoch(self, seq_len: int) -> int:
        return sum(part.tokens_per_epoch(seq_len) for part in self.parts)

    def set_cache(self, budget: int) -> None:
        for part in self.parts:
            part.set_cache(budget // len(self.parts))

    def sequences(self, seed: int, seq_len: int) -> Sequences:
        sources = [part.sequences(seed, seq_len) for part in self.parts]
        for source in sources:
            if source.per_epoch < 1:
                raise UserError(
                    f"{source.name}: shorter than one sequence of {seq_len} tokens; take a smaller seq-len"
                )
        key = f"danalab mixture 1|{self.fingerprint}|{seed}".encode()
        return MixedSequences(sources, self._counts, key, self.title)

    def rows(self, seq_len: int) -> Rows:
        return ConcatenatedRows([part.rows(seq_len) for part in self.parts])

    def check_vocab(self, vocab_size: int) -> None:
        for part in self.parts:
            part.check_vocab(vocab_size)


class MixedSequences:
    """A `Sequences` that takes from several in fixed shares."""

    def __init__(self, sources: Sequence[Sequences], counts: Sequence[int], key: bytes, name: str):
        """`counts`: of each source in a block."""
        self.seq_len, self.name = sources[0].seq_len, name
        self._sources, self._counts, self._key = list(sources), np.array(counts), key
        self._size = int(self._counts.sum())
        # An epoch ends when every source has been read at least once.
        self.per_epoch = max(
            -(-source.per_epoch * self._size // count) for source, count in zip(sources, counts, strict=True)
        )
        self._offsets = np.concatenate([[0], np.cumsum([source.per_epoch for source in sources])])
        self._block = lru_cache(maxsize=4)(self._compute_block)

    def positions(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """(source, position in the source's own list) of the positions [begin, end), int64."""
        sources, positions = [], []
        for number in range(begin // self._size, (end - 1) // self._size + 1):
            origin = number * self._size
            part = slice(max(0, begin - origin), end - origin)
            source, rank = (array[part] for array in self._block(number))
            sources.append(source)
            positions.append(rank + number * self._counts[source])
        return np.concatenate(sources), np.concatenate(positions)

    def _compute_block(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """(source, rank among its sequences of the block) of each position."""
        jitter = (
            Permutation(self._size, self._key + f"|{number}".encode())(np.arange(self._size)) / self._size
        )
        owner = np.repeat(np.arange(len(self._counts)), self._counts)
        rank = np.concatenate([np.arange(count) for count in self._counts])
        order = np.argsort((rank + jitter) / self._counts[owner], kind="stable")
        return owner[order], rank[order]

    def numbers(self, spans: Iterable[Span]) -> np.ndarray:
        """Row numbers in the concatenation of all sources."""
        source, position = self._all_positions(spans)
        rows = np.empty_like(position)
        for number in np.unique(source).tolist():
            mine = source == number
            rows[mine] = self._sources[number].numbers(_runs(position[mine])) + self._offsets[number]
        return rows

    def take(self, spans: Iterable[Span]) -> TokenBatch:
        source, position = self._all_positions(spans)
        return _gather(
            source, self.seq_len, lambda number, mine: self._sources[number].take(_runs(position[mine]))
        )

    def _all_positions(self, spans: Iterable[Span]) -> tuple[np.ndarray, ...]:
        return tuple(
            np.concatenate(arrays) for arrays in zip(*itertools.starmap(self.positions, spans), strict=True)
        )


def _runs(positions: np.ndarray) -> list[Span]:
    """The spans of positions that follow each other: those of a source do within a step, not between a rank's steps."""
    cuts = np.flatnonzero(np.diff(positions) != 1) + 1
    return [(int(run[0]), int(run[-1]) + 1) for run in np.split(positions, cuts)]


class ConcatenatedRows:
    """The rows of several sources, concatenated."""

    def __init__(self, parts: Sequence[Rows]):
        self._parts, self._ends = list(parts), np.cumsum([part.n for part in parts])
        self.n, self.seq_len = int(self._ends[-1]), parts[0].seq_len

    def read(self, numbers: np.ndarray) -> TokenBatch:
        def read_from(owner: int, mine: np.ndarray) -> TokenBatch:
            return self._parts[owner].read(numbers[mine] - (int(self._ends[owner]) - self._parts[owner].n))

        return _gather(np.searchsorted(self._ends, numbers, side="right"), self.seq_len, read_from)


def _gather(owners: np.ndarray, seq_len: int, read: Callable[[int, np.ndarray], TokenBatch]) -> TokenBatch:
    """A batch whose row i comes from source owners[i]; `read(source, rows)` gives a source's rows."""
    import torch

    inputs = torch.empty(len(owners), seq_len, dtype=torch.int64)
    targets = torch.empty_like(inputs)
    for owner in np.unique(owners).tolist():
        mine = np.flatnonzero(owners == owner)
        rows = torch.from_numpy(mine)
        inputs[rows], targets[rows] = read(owner, mine)
    return inputs, targets
