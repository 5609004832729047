"""The word tokenizer: a fixed list of words, each followed by one space in the text; for synthetic languages."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from danalab.data.tokenizers.base import CHAT_SPECIALS, EOS, Tokenizer
from danalab.errors import UserError
from danalab.files import read_json


class WordTokenizer(Tokenizer):
    """The words in their order, then `<|endoftext|>` and the chat marks. Other words are an error."""

    name = "words"

    def __init__(self, words: Sequence[str]):
        """Raises UserError for no words, words that repeat, or that hold white space."""
        self._ids = {word: id_ for id_, word in enumerate(words)}
        if not words or len(self._ids) < len(words) or any(len(word.split()) != 1 for word in words):
            raise UserError("the tokenizer 'words' needs distinct words without white space")
        self._words = list(words)
        self.specials = {spelling: len(words) + n for n, spelling in enumerate((EOS, *CHAT_SPECIALS))}
        self.n_tokens = len(words) + len(self.specials)

    @classmethod
    def from_file(cls, file: str | Path) -> "WordTokenizer":
        """Read a `tokenizer.json` that `save` wrote.

        Raises:
            UserError: a file of other content.
        """
        try:
            vocabulary = read_json(file)["model"]["vocab"]
            words = sorted(vocabulary, key=vocabulary.__getitem__)
            if [vocabulary[word] for word in words] != list(range(len(words))):
                raise ValueError
        except (KeyError, TypeError, ValueError, AttributeError):
            raise UserError(f"{file}: not the list of words of a tokenizer 'words'") from None
        return cls([word for word in words if word not in (EOS, *CHAT_SPECIALS)])

    def _token_table(self) -> list[bytes]:
        return [f"{word} ".encode() for word in self._words]

    def _rules(self) -> dict[str, Any]:
        return {"pre_tokenizer": {"type": "WhitespaceSplit"}}

    def encode_array(self, texts: Sequence[str]) -> list[np.ndarray]:
        try:
            return [np.array([self._ids[word] for word in text.split()], dtype=np.uint32) for text in texts]
        except KeyError as error:
            raise UserError(
                f"'{error.args[0]:.40}' is not one of the {len(self._words)} words of the tokenizer"
            ) from None

    def to_json(self) -> str:
        plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        return json.dumps(
            {
                "version": "1.0",
                "truncation": None,
                "padding": None,
                "added_tokens": [{"id": i, "content": s, **plain, "special": True} for s, i in self.specials.items()],
                "normalizer": None,
                "pre_tokenizer": self._rules()["pre_tokenizer"],
                "post_processor": None,
                "decoder": None,
                "model": {"type": "WordLevel", "vocab": {**self._ids, **self.specials}, "unk_token": EOS},
            }
        )
