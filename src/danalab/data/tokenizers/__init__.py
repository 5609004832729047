"""Tokenizers: bytes, characters, GPT-2's encoding, and byte-pair encodings trained on your text.

    load_tokenizer("bytes" | "characters" | "gpt2" | "path/to/tokenizer.json" | "folder/that/holds/one") -> Tokenizer

A name is a name and a path is a path: "gpt2" is GPT-2's tokenizer, "./gpt2" and Path("gpt2") are a folder, and so are
"bpe-300" and "./bpe-300".

A tokenizer is saved as `tokenizer.json` (the format of the `tokenizers` library, which `transformers` loads) with a
`tokenizer_config.json` that names the specials.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from danalab.data.tokenizers.base import CHAT_SPECIALS, EOS, Tokenizer
from danalab.data.tokenizers.bpe import BpeTokenizer, eos_of_size, train_bpe, trained_size
from danalab.data.tokenizers.chat_template import spelling
from danalab.data.tokenizers.gpt2 import Gpt2Tokenizer
from danalab.data.tokenizers.plain import (
    ByteTokenizer,
    CharacterTokenizer,
    WordTokenizer,
)
from danalab.errors import UserError, nearest
from danalab.files import read_state

__all__ = [
    "CHAT_SPECIALS",
    "BUILT_IN",
    "EOS",
    "UNKNOWN",
    "BpeTokenizer",
    "ByteTokenizer",
    "CharacterTokenizer",
    "Gpt2Tokenizer",
    "Tokenizer",
    "WordTokenizer",
    "eos_of_size",
    "load_tokenizer",
    "requested_size",
    "saved_tokenizer",
    "tokenizer_path",
    "train_bpe",
]


UNKNOWN = "an unknown tokenizer"
"""The name of the tokenizer of ids that nothing describes."""
_PLAIN = {each.name: each for each in (ByteTokenizer, CharacterTokenizer)}  # tokenizers without tables
_FROM_FILE = {"gpt2": Gpt2Tokenizer, "words": WordTokenizer}
"""Tokenizers that are read from a `tokenizer.json`, beside those that were trained."""
BUILT_IN = (*_PLAIN, Gpt2Tokenizer.name)
"""Names of tokenizers that are the same everywhere."""


def tokenizer_path(name: str | Path) -> Path | None:
    """The path that `name` is; None for the name of a tokenizer, also where a file or folder is called like it."""
    is_name = isinstance(name, str) and (name in {*_PLAIN, *_FROM_FILE} or trained_size(name))
    return None if is_name else Path(name)


def requested_size(name: str | Path) -> int:
    """N of `bpe-N`, an encoding to be trained on the corpus; 0 for other names and for paths."""
    return trained_size(str(name)) if tokenizer_path(name) is None else 0


def saved_tokenizer(folder: Path) -> Path | None:
    """The `tokenizer.json` of a folder; None where it has none."""
    file = folder / "tokenizer.json"
    return file if os.path.isfile(file) else None


def load_tokenizer(name: str | Path) -> Tokenizer:
    """The tokenizer `bytes`, `characters` or `gpt2`, or the one saved in a `tokenizer.json` or its folder.

    `name`: a name as text, or a path. Documents end with `<|endoftext|>` where the saved tokenizer has it, else with
    the eos_token in the `tokenizer_config.json` beside it.
    """
    path = tokenizer_path(name)
    if name in _PLAIN and path is None:
        return _PLAIN[str(name)]()
    if name == Gpt2Tokenizer.name:
        return Gpt2Tokenizer.from_cache()
    if path is None:
        size = trained_size(str(name)) or 4096
        raise UserError(
            f"tokenizer '{name}' is made of a corpus: give the folder of one, or train it with "
            f"danalab data train-tokenizer --vocab-size {size} --input FILES --out DIR"
        )
    file = path / "tokenizer.json" if os.path.isdir(path) else path
    if not os.path.isfile(file):
        others = f"{nearest(str(name), BUILT_IN)}; built in: {', '.join(BUILT_IN)}"
        raise UserError(f"no tokenizer at '{file}'{others}")
    beside = file.parent / "tokenizer_config.json"
    settings = read_state(_Settings, beside) if beside.is_file() else _Settings()
    kind = settings.danalab_name
    if kind in _PLAIN:
        return _PLAIN[kind]()
    if kind in _FROM_FILE:
        return _FROM_FILE[kind].from_file(file)
    bos = spelling(settings.bos_token) if settings.add_bos_token else None
    # In chat models eos_token ends an answer, so it comes last.
    ends = [settings.danalab_eos] if settings.danalab_eos else [EOS, spelling(settings.eos_token)]
    return BpeTokenizer.from_file(file, name=kind, eos=[text for text in ends if text], bos=bos)


@dataclass(frozen=True)
class _Settings:
    """The part of `tokenizer_config.json` that is read here."""

    danalab_name: str | None = None
    danalab_eos: str | None = None
    eos_token: Any = None
    bos_token: Any = None
    add_bos_token: Any = None
