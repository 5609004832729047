"""Several data sets as one, in fixed shares: `--data a:0.7,b:0.3`, or a YAML file `{a: 0.7, b: 0.3}`."""

import hashlib
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from danalab.data.dataset import Dataset
from danalab.data.formats.store import TokenStore
from danalab.data.order.mixture import BLOCK, ConcatenatedRows, MixedSequences, block_counts
from danalab.data.order.windows import Rows, Sequences
from danalab.data.tokenizers import Tokenizer
from danalab.data.vocabulary import merge_vocabularies
from danalab.errors import UserError
from danalab.files import read_yaml, validated


class MixedDataset(Dataset):
    """Several data sets in fixed shares; evaluation reads all rows of all of them."""

    def __init__(self, parts: Sequence[Dataset], weights: Sequence[float]):
        """Raises UserError if the parts were written with different tokenizers."""
        self.parts, self.weights = list(parts), [float(weight) for weight in weights]
        self._vocabulary = merge_vocabularies(parts)
        self._counts = block_counts(self.weights)
        shares = " + ".join(
            f"{part.path.name}:{count / BLOCK:g}" for part, count in zip(parts, self._counts, strict=True)
        )
        identity = "\n".join(f"{part.fingerprint} {count}" for part, count in zip(parts, self._counts, strict=True))
        super().__init__(
            Path(shares),
            parts[0].split,
            TokenStore([], f"{shares} ({parts[0].split})"),
            vocab_size=self._vocabulary.vocab_size,
            eos_id=self._vocabulary.eos_id,
            fingerprint=hashlib.sha256(f"mixture 1\n{identity}".encode()).hexdigest(),
            max_ids=[part.max_id for part in parts],
            tokenizer_name=self._vocabulary.tokenizer_name,
            open_split=lambda split: MixedDataset([part.open_split(split) for part in self.parts], self.weights),
        )
        self.n_tokens = sum(part.n_tokens for part in parts)
        self.sequence_length = self._vocabulary.sequence_length

    @property
    def name(self) -> str:
        return self._vocabulary.name

    @property
    def location(self) -> str:
        return ",".join(f"{part.location}:{weight:g}" for part, weight in zip(self.parts, self.weights, strict=True))

    @property
    def least_vocab_size(self) -> int:
        return self._vocabulary.least_vocab_size

    @property
    def n_files(self) -> int:
        return sum(part.n_files for part in self.parts)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of all parts."""
        return self.parts[0].tokenizer

    def set_cache(self, budget: int) -> None:
        for part in self.parts:
            part.set_cache(budget // len(self.parts))

    def sequences(self, seed: int, seq_len: int, packing: str = "windows") -> Sequences:
        sources = [part.sequences(seed, seq_len, packing) for part in self.parts]
        for source in sources:
            if source.per_epoch < 1:
                raise UserError(f"{source.name}: shorter than one sequence of {seq_len} tokens; take a smaller seq-len")
        key = f"danalab mixture 1|{self.fingerprint}|{seed}".encode()
        return MixedSequences(sources, self._counts, key, f"{self.path} ({self.split})")

    def rows(self, seq_len: int) -> Rows:
        return ConcatenatedRows([part.rows(seq_len) for part in self.parts])

    def check_vocab(self, vocab_size: int) -> None:
        for part in self.parts:
            part.check_vocab(vocab_size)


def parse_mixture(text: str) -> list[tuple[str, float]] | None:
    """(data set, weight) of each part of `a:0.7,b:0.3` or of a YAML file; None for a single data set."""
    if Path(text).suffix in (".yaml", ".yml"):
        return _checked(_from_yaml(text), text)
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


def _from_yaml(file: str) -> list[tuple[str, float]]:
    return list(validated(dict[str, float], read_yaml(file), f"--data {file}").items())


def _checked(pairs: list[tuple[str, float]], text: str) -> list[tuple[str, float]]:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names) or not names:
        raise UserError(f"--data {text}: name at least one data set, and each only once")
    block_counts([weight for _, weight in pairs])
    return pairs
