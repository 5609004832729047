"""Tokenizers: bytes, characters, GPT-2's encoding, and byte-pair encodings trained on your text.

    load_tokenizer("bytes" | "characters" | "gpt2" | "path/to/tokenizer.json" | "folder/that/holds/one") -> Tokenizer

A tokenizer is saved as `tokenizer.json` (the format of the `tokenizers` library, which `transformers` loads) with a
`tokenizer_config.json` that names the specials.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from danalab.data.tokenizers.base import CHAT_SPECIALS, EOS, Tokenizer
from danalab.data.tokenizers.bpe import BpeTokenizer, eos_of_size, requested_size, train_bpe
from danalab.data.tokenizers.gpt2 import Gpt2Tokenizer
from danalab.data.tokenizers.plain import ByteTokenizer, CharacterTokenizer, WordTokenizer
from danalab.errors import UserError, nearest
from danalab.files import read_state

__all__ = [
    "CHAT_SPECIALS",
    "EOS",
    "BpeTokenizer",
    "ByteTokenizer",
    "CharacterTokenizer",
    "Gpt2Tokenizer",
    "Tokenizer",
    "WordTokenizer",
    "eos_of_size",
    "load_tokenizer",
    "requested_size",
    "train_bpe",
]


_PLAIN = {each.name: each for each in (ByteTokenizer, CharacterTokenizer)}  # tokenizers without tables
_FROM_FILE = {each.name: each for each in (Gpt2Tokenizer, WordTokenizer)}
"""Tokenizers that are read from a `tokenizer.json`, beside those that were trained."""


def load_tokenizer(name: str | Path) -> Tokenizer:
    """The tokenizer `bytes`, `characters` or `gpt2`, or the one saved in a `tokenizer.json` or its folder."""
    text = str(name)
    if text in _PLAIN:
        return _PLAIN[text]()
    if text == Gpt2Tokenizer.name:
        return _gpt2_from_cache()
    path = Path(name)
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        if path.is_dir():
            raise UserError(f"{path}: no tokenizer.json in this folder")
        if text.startswith("bpe-") and text[4:].isascii() and text[4:].isdigit():
            raise UserError(
                f"tokenizer '{text}' is trained on a corpus: give the folder of a trained one, or train it with "
                f"danalab data train-tokenizer --vocab-size {text[4:]} --input FILES --out DIR"
            )
        raise UserError(
            f"no tokenizer '{text}'{nearest(text, [*_PLAIN, 'gpt2'])}: {', '.join(_PLAIN)}, gpt2, a tokenizer.json"
        )
    settings = file.parent / "tokenizer_config.json"
    kind = read_state(_Settings, settings).danalab_name if settings.is_file() else None
    if kind in _PLAIN:
        return _PLAIN[kind]()
    if kind in _FROM_FILE:
        return _FROM_FILE[kind].from_file(file)
    return BpeTokenizer.from_file(file, name=kind)


@dataclass(frozen=True)
class _Settings:
    """The part of `tokenizer_config.json` that is read here."""

    danalab_name: str | None = None


@lru_cache(maxsize=1)
def _gpt2_from_cache() -> Gpt2Tokenizer:
    return Gpt2Tokenizer.from_cache()
