"""The synthetic language as a corpus: endless, and of known entropy."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Interval
from pydantic import ConfigDict

from danalab.data.sources.base import Source
from danalab.data.tokenizers import Tokenizer
from danalab.data.tokenizers.plain import WordTokenizer
from danalab.files import validated

_BLOCK = 2048  # documents that are generated together


class SyntheticSource(Source):
    """Documents of a `Language`, one token a word; see there. Document i is the same however many are read."""

    name = "synthetic"
    licence = "CC0-1.0"
    ready = True
    default_tokenizer = "words"
    default_max_tokens = 20_000_000
    val_fraction = 0.02

    def __init__(self, language: Language | None = None):
        """`language`: its settings; by default the default ones."""
        self.language = language or Language()

    def make_tokenizer(self, name: str | Path) -> Tokenizer | None:
        if name == self.default_tokenizer:
            return WordTokenizer(self.language.vocabulary)
        return super().make_tokenizer(name)

    def iter_documents(self) -> Iterator[str]:
        return self.iter_part("train", 0)

    def iter_part(self, side: str, number: int, skip: int = 0) -> Iterator[str]:
        words = [f"{word} " for word in self.language.vocabulary]
        for first in itertools.count(skip, _BLOCK):
            for document in self.language.documents(first, _BLOCK).tolist():
                yield "".join([words[token] for token in document])

    def size_bytes(self) -> None:
        return None

    def identity(self) -> str:
        return json.dumps(asdict(self.language), sort_keys=True)

    def pin(self, origin: dict[str, Any]) -> dict[str, Any]:
        """The settings and the entropy [nats per token] become part of the manifest."""
        return {"language": asdict(self.language), "entropy": self.language.entropy}


@dataclass(frozen=True)
class Language:
    """The settings of a language; equal settings give equal documents."""

    words: Annotated[int, Interval(ge=2, le=1 << 20)] = 1024
    """Number of words."""
    zipf: Annotated[float, Interval(ge=0, le=10)] = 1.0
    """Exponent of the words' frequencies."""
    levels: Annotated[int, Interval(ge=1, le=1 << 20)] = 4
    """Levels of questions; a question of level k depends on k words."""
    level_exponent: Annotated[float, Interval(ge=0, le=10)] = 1.0
    """Exponent of the levels' frequencies."""
    answers: Annotated[int, Interval(ge=2, le=1 << 20)] = 64
    """Number of answers."""
    questions: Annotated[float, Interval(ge=0, le=0.99)] = 0.3
    """Share of the units that are questions."""
    document_tokens: Annotated[int, Interval(ge=2, le=1 << 20)] = 256
    """Tokens of a document, with the one that ends it; training windows of this length hold one document each."""
    seed: Annotated[int, Interval(ge=0, le=1 << 20)] = 0
    """Seed of the answers and of the documents."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    @classmethod
    def parse(cls, settings: Sequence[str]) -> Language:
        """The language of `KEY=VALUE` texts; settings that are not given have their defaults."""
        pairs = (setting.partition("=") for setting in settings)
        return validated(cls, {key.replace("-", "_"): value for key, _, value in pairs}, "--language")

    @property
    def vocabulary(self) -> list[str]:
        """w0 .. (most frequent first), k1 .. (questions), a0 .. (answers)."""
        return [
            *(f"w{rank}" for rank in range(self.words)),
            *(f"k{level}" for level in range(1, self.levels + 1)),
            *(f"a{number}" for number in range(self.answers)),
        ]

    @cached_property
    def starts(self) -> np.ndarray:
        """P(first token of a unit), float64 [words + levels], in the order of the vocabulary."""
        words = (1 - self.questions) * _power_law(self.words, self.zipf)
        return np.concatenate([words, self.questions * _power_law(self.levels, self.level_exponent)])

    @property
    def entropy(self) -> float:
        """Exact entropy [nats per token, the end of a document counted], given all earlier tokens of the document.

        Answers are certain, and the last token before the end is a word: a unit of two tokens would not fit.
        """
        start, only_words = _entropy(self.starts), _entropy(_power_law(self.words, self.zipf))
        rest = [0.0, only_words]  # rest[n]: of the last n tokens before the end, at the start of a unit
        for n in range(2, self.document_tokens):
            rest.append(start + (1 - self.questions) * rest[n - 1] + self.questions * rest[n - 2])
        return rest[self.document_tokens - 1] / self.document_tokens

    def documents(self, first: int, count: int) -> np.ndarray:
        """Documents from `first` on without their end, int64 [count, document_tokens - 1]; i depends on i alone."""
        length = self.document_tokens - 1
        bits = (np.random.Philox(key=[self.seed, first + row]) for row in range(count))
        uniform = np.stack([np.random.Generator(each).random(length) for each in bits])
        tokens = np.zeros((count, length), np.int64)
        history = np.zeros((count, length), np.int64)  # the words so far
        seen, answering = np.zeros(count, np.int64), np.zeros(count, bool)
        cumulative = np.cumsum(self.starts)
        words = np.cumsum(_power_law(self.words, self.zipf))
        rows = np.arange(count)
        for position in range(length):
            last = position == length - 1  # a unit of two tokens would not fit: a word
            drawn = np.searchsorted(words if last else cumulative, uniform[:, position], side="right")
            drawn = np.minimum(drawn, (self.words if last else len(cumulative)) - 1)
            if position:
                drawn = np.where(answering, self._answer(tokens[:, position - 1], history, seen), drawn)
            tokens[:, position] = drawn
            is_word = drawn < self.words
            new = is_word & ~answering
            history[rows[new], seen[new]] = drawn[new]
            seen += new
            answering = ~answering & ~is_word
        return tokens

    def _answer(self, marks: np.ndarray, history: np.ndarray, seen: np.ndarray) -> np.ndarray:
        """The answers to the questions `marks`. history: [n, words so far]; seen: [n], its valid length."""
        rows = np.arange(len(marks))
        level = marks - self.words + 1
        key = _mix(np.uint64(self.seed) ^ _mix(np.maximum(level, 0).astype(np.uint64)))
        for distance in range(1, self.levels + 1):
            asked = (distance <= level) & (distance <= seen)
            word = history[rows, np.maximum(seen - distance, 0)]
            key = np.where(asked, _mix(key ^ word.astype(np.uint64)), key)
        return len(self.vocabulary) - self.answers + (key % np.uint64(self.answers)).astype(np.int64)


def _power_law(n: int, exponent: float) -> np.ndarray:
    weights = np.arange(1, n + 1, dtype=np.float64) ** -exponent
    return weights / weights.sum()


def _entropy(probabilities: np.ndarray) -> float:
    positive = probabilities[probabilities > 0]
    return -math.fsum((positive * np.log(positive)).tolist())


def _mix(value: np.ndarray | np.uint64) -> np.ndarray:
    """A hash of 64 bits (the finalizer of SplitMix64)."""
    with np.errstate(over="ignore"):
        mixed = np.asarray(value, np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))
