"""The synthetic language as a corpus: endless, and of known entropy."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

from danalab.data.sources.base import Source
from danalab.data.sources.language import Language
from danalab.data.tokenizers import Tokenizer
from danalab.data.tokenizers.words import WordTokenizer

_BLOCK = 2048
"""Documents that are generated together."""


class SyntheticSource(Source):
    """Documents of a `Language`, one token a word; see there. Document i is the same however many are read."""

    name = "synthetic"
    licence = "CC0-1.0"
    summary = "A generated language of known entropy, as long as you want"
    ready = True
    default_tokenizer = "words"
    default_max_tokens = 20_000_000
    val_fraction = 0.02

    def __init__(self, language: Language | None = None):
        """`language`: its settings; by default the default ones."""
        self.language = language or Language()

    def make_tokenizer(self, name: str) -> Tokenizer | None:
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
        return json.dumps(self.language.as_dict(), sort_keys=True)

    def pin(self, origin: dict[str, Any]) -> dict[str, Any]:
        """The settings and the entropy [nats per token] become part of the manifest."""
        return {"language": self.language.as_dict(), "entropy": self.language.entropy}
