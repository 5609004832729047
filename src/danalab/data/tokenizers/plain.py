"""Tokenizers without merges: bytes, the characters of plain English text or of nanoGPT's data, a fixed list of words.

nanoGPT's `meta.pkl` beside train.bin and val.bin lists one character for each id:

    {"vocab_size": 65, "itos": {0: "\\n", 1: " ", ...}, "stoi": {"\\n": 0, " ": 1, ...}}
"""

from __future__ import annotations

import json
import pickle
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
from danalab.errors import UserError, first_line
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
        return json.dumps(byte_level_json(self._token_table(), [], self.specials))


class CharacterTokenizer(Tokenizer):
    """An id for each character, by default of the 96 in code order; then `<|endoftext|>` and the chat marks."""

    name = "characters"

    def __init__(self, alphabet: Sequence[str] = ALPHABET) -> None:
        self.alphabet = alphabet
        self.specials = specials_from(len(alphabet))
        self.n_tokens = len(alphabet) + len(SPECIALS)
        codes = np.array([ord(character) for character in alphabet])
        self._ids = np.argsort(codes)
        self._codes = codes[self._ids]

    def _token_table(self) -> list[bytes]:
        return [character.encode() for character in self.alphabet]

    def encode_array(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [self._encoded(text) for text in texts]

    def _encoded(self, text: str) -> np.ndarray:
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
        indices = np.minimum(np.searchsorted(self._codes, codes), len(self._codes) - 1)
        if len(unknown := np.flatnonzero(self._codes[indices] != codes)):
            at = int(unknown[0])
            raise UserError(
                f"character {text[at]!r} (U+{ord(text[at]):04X}) at character {at} is not one of the "
                f"{len(self.alphabet)} of the tokenizer '{self.name}'; use bytes, gpt2 or a trained tokenizer"
            )
        return self._ids[indices]

    def to_json(self) -> str:
        return json.dumps(byte_level_json(self._token_table(), [], self.specials))


class WordTokenizer(Tokenizer):
    """The words in their order, then `<|endoftext|>` and the chat marks. Other words are an error."""

    name = "words"

    def __init__(self, words: Sequence[str]):
        """Raises UserError for no words, words that repeat, or that hold white space."""
        self._ids = {word: id_ for id_, word in enumerate(words)}
        if not words or len(self._ids) < len(words) or any(len(word.split()) != 1 for word in words):
            raise UserError("the tokenizer 'words' needs distinct words without white space")
        self._words = list(words)
        self.specials = specials_from(len(words))
        self.n_tokens = len(words) + len(self.specials)

    @classmethod
    def from_file(cls, file: str | Path) -> WordTokenizer:
        """Read a `tokenizer.json` that `save` wrote."""
        return cls(read_words(file, "the list of words of a tokenizer 'words'"))

    def _token_table(self) -> list[bytes]:
        return [f"{word} ".encode() for word in self._words]

    def _rules(self) -> dict[str, Any]:
        return {"pre_tokenizer": {"type": "WhitespaceSplit"}}

    def encode_array(self, texts: Sequence[str]) -> list[np.ndarray]:
        try:
            return [np.array([self._ids[word] for word in text.split()], dtype=np.uint32) for text in texts]
        except KeyError as error:
            raise UserError(
                f"'{error.args[0]:.40}' is not one of the tokenizer's {len(self._words)} words"
            ) from None

    def to_json(self) -> str:
        model = {"type": "WordLevel", "vocab": {**self._ids, **self.specials}, "unk_token": EOS}
        return json.dumps(tokenizer_json(model, self.specials, self._rules()["pre_tokenizer"], None))


def read_words(file: str | Path, what: str) -> list[str]:
    """The tokens of a `tokenizer.json` in the order of their ids, without specials; `what` they must be."""
    try:
        vocabulary = read_json(file)["model"]["vocab"]
        words = sorted(vocabulary, key=vocabulary.__getitem__)
        if [vocabulary[word] for word in words] != list(range(len(words))):
            raise ValueError
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError(f"{file}: not {what}") from None
    return [word for word in words if word not in SPECIALS]


def byte_level_json(
    table: list[bytes], merges: list[tuple[bytes, bytes]], specials: dict[str, int]
) -> dict[str, Any]:
    """The content of a `tokenizer.json` for a byte-level BPE."""
    model = {
        "type": "BPE",
        **dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")),
        **dict.fromkeys(("fuse_unk", "byte_fallback", "ignore_merges"), False),
        "vocab": {to_printable(token): id_ for id_, token in enumerate(table) if token},
        "merges": [[to_printable(left), to_printable(right)] for left, right in merges],
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


META = "meta.pkl"


class AlphabetTokenizer(CharacterTokenizer):
    """A character for each id, in any order; then `<|endoftext|>` and the chat marks, which the data lack."""

    name = "alphabet"

    @classmethod
    def from_file(cls, file: str | Path) -> AlphabetTokenizer:
        """Read a `tokenizer.json` that `save` wrote."""
        return cls(_checked(read_words(file, "the characters of a tokenizer 'alphabet'"), file))

    def _rules(self) -> dict[str, Any]:
        each = {"Regex": r"[\s\S]"}
        return {"pre_tokenizer": {"type": "Split", "pattern": each, "behavior": "Isolated", "invert": False}}

    def to_json(self) -> str:
        vocabulary = {character: id_ for id_, character in enumerate(self.alphabet)}
        model = {"type": "WordLevel", "vocab": {**vocabulary, **self.specials}, "unk_token": SPECIALS[0]}
        return json.dumps(
            tokenizer_json(model, self.specials, self._rules()["pre_tokenizer"], {"type": "Fuse"})
        )


class _PlainUnpickler(pickle.Unpickler):
    """Reads dictionaries, lists, texts and numbers; no class or function is ever looked up."""

    def find_class(self, module: str, name: str) -> Any:
        raise ValueError(f"it holds more than texts and integers ({module}.{name})")


def read_meta(file: Path) -> tuple[int, list[str] | None]:
    """(number of ids, the character of each) of a `meta.pkl`; None: it has no characters. Runs no code of the file."""
    advice = 'put a tokenizer.json beside it, or a tokens.json of {"vocab_size": N}'
    try:
        with open(file, "rb") as stream:
            meta = _PlainUnpickler(stream).load()
        size, itos = meta.get("vocab_size"), meta.get("itos")
        if isinstance(itos, dict):
            itos = [itos.get(id_) for id_ in range(len(itos))]
    except Exception as error:  # a damaged pickle may raise almost anything
        raise UserError(f"{file}: not read: {first_line(error)}; {advice}") from error
    alphabet = None if itos is None else _checked(itos, file)
    size = len(alphabet) if size is None and alphabet is not None else size
    if type(size) is not int or not 0 < size <= 1 << 28 or (alphabet is not None and len(alphabet) != size):
        raise UserError(
            f"{file}: not nanoGPT's: no vocab_size, or another than the number of characters; {advice}"
        )
    return size, alphabet


def _checked(alphabet: list[Any], file: str | Path) -> list[str]:
    """The alphabet, of distinct single characters."""
    for id_, text in enumerate(alphabet):
        if not isinstance(text, str) or len(text) != 1 or 0xD800 <= ord(text) < 0xE000:
            raise UserError(
                f"{file}: id {id_} is {text!r:.40}; it must be a character, or give a tokenizer.json"
            )
    if len(set(alphabet)) < len(alphabet) or not alphabet:
        raise UserError(
            f"{file}: {len(alphabet)} ids for {len(set(alphabet))} characters; each needs one of its own"
        )
    return alphabet
