"""Tokenizers without merges: bytes, the characters of plain English text, a fixed list of words."""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from danalab.data.tokenizers.base import (
    BYTE_LEVEL_RULE,
    EOS,
    SPECIALS,
    Tokenizer,
    reject_surrogates,
    specials_from,
    to_printable,
)
from danalab.errors import UserError
from danalab.files import read_json

ALPHABET = "".join(sorted(string.ascii_letters + string.digits + string.punctuation + " \n"))


class ByteTokenizer(Tokenizer):
    """256 bytes, `<|endoftext|>` (id 256) and the chat marks."""

    name = "bytes"
    specials = specials_from(256)
    n_tokens = 256 + len(SPECIALS)

    def _token_table(self) -> list[bytes]:
        return [bytes([value]) for value in range(256)]

    def encode_array(self, texts: Sequence[str]) -> list[np.ndarray]:
        for text in texts:
            reject_surrogates(text)
        return [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts]

    def to_json(self) -> str:
        return json.dumps(byte_level_json(self._token_table(), self.specials))


class ListTokenizer(Tokenizer):
    """An id for each piece of a list, then `<|endoftext|>` and the chat marks. Other pieces are an error."""

    pre_tokenizer: ClassVar[dict[str, Any]]
    decoder: ClassVar[dict[str, Any] | None] = None
    divided: ClassVar[Callable[[str], Iterable[str]]]
    """The pieces of a text."""
    after: ClassVar[str] = ""
    """What follows a piece in the text of ids."""

    def __init__(self, pieces: Sequence[str]):
        self.pieces = list(pieces)
        self.specials = specials_from(len(pieces))
        self.n_tokens = len(pieces) + len(self.specials)
        self._ids = {piece: id_ for id_, piece in enumerate(pieces)}

    @classmethod
    def from_file(cls, file: str | Path) -> ListTokenizer:
        """Read a `tokenizer.json` that `save` wrote."""
        try:
            vocabulary = read_json(file)["model"]["vocab"]
            pieces = sorted(vocabulary, key=vocabulary.__getitem__)
            if [vocabulary[piece] for piece in pieces] != list(range(len(pieces))):
                raise ValueError
        except (KeyError, TypeError, ValueError, AttributeError):
            raise UserError(f"{file}: not the list of a tokenizer '{cls.name}'") from None
        return cls([piece for piece in pieces if piece not in SPECIALS])

    def _rules(self) -> dict[str, Any]:
        return {"pre_tokenizer": self.pre_tokenizer}

    def _token_table(self) -> list[bytes]:
        return [f"{piece}{self.after}".encode() for piece in self.pieces]

    def encode_array(self, texts: Sequence[str]) -> list[np.ndarray]:
        try:
            ids = [[self._ids[piece] for piece in type(self).divided(text)] for text in texts]
        except KeyError as error:
            raise UserError(
                f"{error.args[0]!r:.40} is not one of the {len(self.pieces)} {self.name} of this tokenizer; use bytes, "
                "gpt2 or a trained tokenizer"
            ) from None
        return [np.array(each, np.uint32) for each in ids]

    def to_json(self) -> str:
        model = {"type": "WordLevel", "vocab": {**self._ids, **self.specials}, "unk_token": EOS}
        return json.dumps(tokenizer_json(model, self.specials, self.pre_tokenizer, self.decoder))


class CharacterTokenizer(ListTokenizer):
    """An id for each character: those of plain English, in code order."""

    name = "characters"
    divided = list
    pre_tokenizer: ClassVar = {
        "type": "Split",
        "pattern": {"Regex": r"[\s\S]"},
        "behavior": "Isolated",
        "invert": False,
    }
    decoder: ClassVar = {"type": "Fuse"}

    def __init__(self):
        super().__init__(ALPHABET)


class WordTokenizer(ListTokenizer):
    """An id for each word of a list, which white space separates."""

    name = "words"
    divided = staticmethod(str.split)
    after = " "
    pre_tokenizer: ClassVar = {"type": "WhitespaceSplit"}


def byte_level_json(table: list[bytes], specials: dict[str, int]) -> dict[str, Any]:
    """The content of a `tokenizer.json` for a byte-level BPE without merges."""
    model = {
        "type": "BPE",
        **dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")),
        **dict.fromkeys(("fuse_unk", "byte_fallback", "ignore_merges"), False),
        "vocab": {to_printable(token): id_ for id_, token in enumerate(table) if token},
        "merges": [],
    }
    return tokenizer_json(model, specials, BYTE_LEVEL_RULE, BYTE_LEVEL_RULE)


def tokenizer_json(
    model: dict[str, Any],
    specials: dict[str, int],
    pre_tokenizer: dict[str, Any],
    decoder: dict[str, Any] | None,
) -> dict[str, Any]:
    """The content of a `tokenizer.json`."""
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": s, **plain, "special": True} for s, i in specials.items()],
        "normalizer": None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": model,
    }
