"""Several data sets as one, in given shares: `--data a:0.7,b:0.3`, or a YAML file `{a: 0.7, b: 0.3}`.

Every block of 10,000 sequences holds each source exactly as often as its share says, spread evenly with a keyed jitter:
the j-th of a source's c sequences in a block lies near j / c of it. Each source keeps its own order, that of training
on it alone with the same seed: its next sequence is the one after those that came before, whatever the block. So place
p of the mixture is a pure function of the seed, and shares need not fit the sizes: a small source comes round sooner.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import torch

from danalab.data.dataset import Dataset, open_dataset
from danalab.data.formats.store import TokenStore
from danalab.data.order.permutation import Permutation
from danalab.data.order.windows import Batch, Rows, Sequences, Span
from danalab.data.tokenizers import Tokenizer
from danalab.data.vocabulary import of_mixture
from danalab.errors import UserError

BLOCK = 10_000


def block_counts(weights: Sequence[float], block: int = BLOCK) -> list[int]:
    """How many sequences of a block come from each source: shares rounded so that they sum up, largest rests first.

    Raises:
        UserError: a weight that is not positive and finite, or a share below one sequence a block.
    """
    if not all(0 < weight < float("inf") for weight in weights):
        raise UserError(f"weights {', '.join(f'{weight:g}' for weight in weights)}: each must be positive")
    exact = [block * weight / sum(weights) for weight in weights]
    counts = [int(share) for share in exact]
    rests = sorted(range(len(exact)), key=lambda i: counts[i] - exact[i])
    for i in rests[: block - sum(counts)]:
        counts[i] += 1
    if min(counts) == 0:
        raise UserError(f"weight {min(weights):g}: less than one sequence of {block:,}")
    return counts


class MixedSequences:
    """A `Sequences` that takes from several in fixed shares."""

    def __init__(self, sources: Sequence[Sequences], counts: Sequence[int], key: bytes, name: str):
        """`counts`: of each source in a block."""
        self.seq_len, self.name = sources[0].seq_len, name
        self._sources, self._counts, self._key = list(sources), np.array(counts), key
        self._size = int(self._counts.sum())
        # An epoch is over when every source has come round at least once.
        self.per_epoch = max(-(-source.per_epoch * self._size // count)
                             for source, count in zip(sources, counts, strict=True))  # fmt: skip
        self._offsets = np.concatenate([[0], np.cumsum([source.per_epoch for source in sources])])
        self._block = lru_cache(maxsize=4)(self._compute_block)

    def places(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """(source, place in the source's own list) of the places [begin, end), int64."""
        sources, places = [], []
        for number in range(begin // self._size, (end - 1) // self._size + 1):
            origin = number * self._size
            part = slice(max(0, begin - origin), end - origin)
            source, rank = (array[part] for array in self._block(number))
            sources.append(source)
            places.append(rank + number * self._counts[source])
        return np.concatenate(sources), np.concatenate(places)

    def _compute_block(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """(source, how many of it came before in the block) of each place."""
        jitter = Permutation(self._size, self._key + f"|{number}".encode())(np.arange(self._size)) / self._size
        owner = np.repeat(np.arange(len(self._counts)), self._counts)
        rank = np.concatenate([np.arange(count) for count in self._counts])
        order = np.argsort((rank + jitter) / self._counts[owner], kind="stable")
        return owner[order], rank[order]

    def numbers(self, spans: Iterable[Span]) -> np.ndarray:
        """Rows counted through all sources, one after the other."""
        found = []
        for begin, end in spans:
            for source, first, last in self._runs(begin, end):
                found.append(self._sources[source].numbers([(first, last)]) + self._offsets[source])
        return np.concatenate(found)

    def take(self, spans: Iterable[Span]) -> Batch:
        """See `Sequences`."""
        spans = list(spans)
        total = sum(end - begin for begin, end in spans)
        inputs = torch.empty(total, self.seq_len, dtype=torch.int64)
        targets = torch.empty_like(inputs)
        source, place = (np.concatenate(arrays) for arrays in zip(*itertools.starmap(self.places, spans), strict=True))
        for number in np.unique(source).tolist():
            mine = np.flatnonzero(source == number)
            # Within a step a source's places follow one another; between the steps of one rank they may jump.
            cuts = np.flatnonzero(np.diff(place[mine]) != 1) + 1
            own = [(int(run[0]), int(run[-1]) + 1) for run in np.split(place[mine], cuts)]
            some_inputs, some_targets = self._sources[number].take(own)
            inputs[torch.from_numpy(mine)] = some_inputs
            targets[torch.from_numpy(mine)] = some_targets
        return inputs, targets

    def _runs(self, begin: int, end: int) -> Iterable[tuple[int, int, int]]:
        """(source, first, last) for each place, in order."""
        source, place = self.places(begin, end)
        return ((int(s), int(p), int(p) + 1) for s, p in zip(source, place, strict=True))


class _Joined:
    """The rows of several, one after the other."""

    def __init__(self, parts: Sequence[Rows]):
        self._parts, self._ends = list(parts), np.cumsum([part.n for part in parts])
        self.n, self.seq_len = int(self._ends[-1]), parts[0].seq_len

    def read(self, numbers: np.ndarray) -> Batch:
        """See `Rows`."""
        inputs = torch.empty(len(numbers), self.seq_len, dtype=torch.int64)
        targets = torch.empty_like(inputs)
        owners = np.searchsorted(self._ends, numbers, side="right")
        for owner in np.unique(owners).tolist():
            mine = np.flatnonzero(owners == owner)
            begin = int(self._ends[owner]) - self._parts[owner].n
            some_inputs, some_targets = self._parts[owner].read(numbers[mine] - begin)
            inputs[torch.from_numpy(mine)] = some_inputs
            targets[torch.from_numpy(mine)] = some_targets
        return inputs, targets


class MixedDataset(Dataset):
    """Several data sets in fixed shares; evaluated on all rows of all of them."""

    def __init__(self, parts: Sequence[Dataset], weights: Sequence[float]):
        """Raises UserError where the parts were not written with one tokenizer."""
        self.parts, self.weights = list(parts), [float(weight) for weight in weights]
        self._words = of_mixture(parts)
        self._counts = block_counts(self.weights)
        shares = " + ".join(
            f"{part.path.name}:{count / BLOCK:g}" for part, count in zip(parts, self._counts, strict=True)
        )
        identity = "\n".join(f"{part.fingerprint} {count}" for part, count in zip(parts, self._counts, strict=True))
        super().__init__(
            Path(shares),
            parts[0].split,
            TokenStore([], f"{shares} ({parts[0].split})"),
            vocab_size=self._words.vocab_size,
            eos_id=self._words.eos_id,
            fingerprint=hashlib.sha256(f"mixture 1\n{identity}".encode()).hexdigest(),
            max_ids=[part.max_id for part in parts],
            tokenizer_name=self._words.tokenizer_name,
        )
        self.n_tokens = sum(part.n_tokens for part in parts)
        self.sequence_length = self._words.sequence_length

    @property
    def name(self) -> str:
        """What runs on it are called by."""
        return self._words.name

    @property
    def location(self) -> str:
        """What opens it again from any folder."""
        return ",".join(f"{part.location}:{weight:g}" for part, weight in zip(self.parts, self.weights, strict=True))

    @property
    def least_vocab_size(self) -> int:
        """Rows that an embedding must have at the least."""
        return self._words.least_vocab_size

    @property
    def n_files(self) -> int:
        """Files of all parts."""
        return sum(part.n_files for part in self.parts)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of all parts."""
        return self.parts[0].tokenizer

    def set_cache(self, budget: int) -> None:
        """See `Dataset.set_cache`; each part has its share."""
        for part in self.parts:
            part.set_cache(budget // len(self.parts))

    def open_split(self, split: str) -> MixedDataset:
        """See `Dataset.open_split`."""
        return MixedDataset([part.open_split(split) for part in self.parts], self.weights)

    def sequences(self, seed: int, seq_len: int, packing: str = "windows") -> Sequences:
        """See `Dataset.sequences`."""
        sources = [part.sequences(seed, seq_len, packing) for part in self.parts]
        for source in sources:
            if source.per_epoch < 1:
                raise UserError(f"{source.name}: not one sequence of {seq_len} tokens; take a smaller seq-len")
        key = f"danalab mixture 1|{self.fingerprint}|{seed}".encode()
        return MixedSequences(sources, self._counts, key, f"{self.path} ({self.split})")

    def rows(self, seq_len: int) -> Rows:
        """All rows of all parts, one after the other."""
        return _Joined([part.rows(seq_len) for part in self.parts])

    def check_vocab(self, vocab_size: int) -> None:
        """See `Dataset.check_vocab`."""
        for part in self.parts:
            part.check_vocab(vocab_size)


def parse_mixture(text: str) -> list[tuple[str, float]] | None:
    """(data set, weight) of each part of `a:0.7,b:0.3` or of a YAML file of names and weights; None: one data set.

    Raises:
        UserError: a part without a weight, a weight that is no number, a name given twice.
    """
    if Path(text).suffix in (".yaml", ".yml"):
        return _checked(_from_yaml(text), text)
    if "," not in text or Path(text).exists():
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


def _from_yaml(file: str) -> list[tuple[str, float]]:
    import yaml

    try:
        content = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
        return [(str(name), float(weight)) for name, weight in content.items()]
    except OSError as error:
        raise UserError(f"--data {file}: {error.strerror or error}") from error
    except (yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
        raise UserError(f"--data {file}: a mapping of data sets to weights is expected") from error


def _checked(pairs: list[tuple[str, float]], text: str) -> list[tuple[str, float]]:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names) or not names:
        raise UserError(f"--data {text}: each data set must be named once")
    block_counts([weight for _, weight in pairs])
    return pairs


def open_data(data: str | Path, tokenizer: str | Path | None = None, split: str = "train") -> Dataset:
    """Open what a person writes after `--data`: a folder, the name of a source, or a mixture of them.

    Raises:
        UserError: see `resolve_dataset`, `open_dataset` and `parse_mixture`.
    """
    from danalab.data.open import resolve_dataset

    pairs = parse_mixture(str(data))
    if pairs is None:
        return open_dataset(resolve_dataset(data, tokenizer), split)
    parts = [open_dataset(resolve_dataset(name, tokenizer), split) for name, _ in pairs]
    return MixedDataset(parts, [weight for _, weight in pairs])
