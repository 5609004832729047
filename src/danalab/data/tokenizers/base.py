"""The base class of tokenizers: a table of byte strings, one per id, and a few specials.

The vocabulary is padded to a multiple of 64 for the matrix units: ids [n_tokens, vocab_size) exist in the model but
are never produced. Text never encodes to a special: `<|endoftext|>` in a document is encoded as characters.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from danalab.errors import UserError
from danalab.files import write_atomically, write_json

EOS = "<|endoftext|>"
"""Ends every document; also the beginning-of-sequence mark."""
CHAT_SPECIALS = (
    "<|user_start|>",
    "<|user_end|>",
    "<|assistant_start|>",
    "<|assistant_end|>",
    "<|python_start|>",
    "<|python_end|>",
    "<|output_start|>",
    "<|output_end|>",
)
"""Marks of roles and tool calls in a conversation."""
SPECIALS = (EOS, *CHAT_SPECIALS)
BYTE_LEVEL_RULE = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
"""GPT-2's rule for splitting text into words, in `tokenizer.json`; used by all tokenizers of this package."""


def specials_from(first: int) -> dict[str, int]:
    """Ids of the specials, the first ones from `first` on."""
    return {text: first + n for n, text in enumerate(SPECIALS)}


def padded(n: int, multiple: int = 64) -> int:
    """The next multiple of 64."""
    return -(-n // multiple) * multiple


class Tokenizer(ABC):
    """Text to ids and back, lossless for any Unicode text.

    Attributes:
        name: e.g. "gpt2" or "bpe-4096".
        n_tokens: number of ids without padding.
        specials: text -> id of the specials, `<|endoftext|>` and the chat marks.
        eos: text of the special that ends documents.
        prefix: ids that a tokenizer's own rules put before a text, of others' models.
    """

    name: str
    n_tokens: int
    specials: dict[str, int]
    eos: str = EOS
    prefix: tuple[int, ...] = ()

    @property
    def vocab_size(self) -> int:
        """Rows of a model's embedding: `n_tokens` padded to a multiple of 64."""
        return padded(self.n_tokens)

    @property
    def eos_id(self) -> int:
        """Id that ends documents."""
        return self.specials[self.eos]

    @property
    def bos_id(self) -> int:
        """Id that begins a document: that of the tokenizer's own rules, else the one that ends them."""
        return self.prefix[0] if self.prefix else self.eos_id

    @abstractmethod
    def _token_table(self) -> list[bytes]:
        """Raw bytes of each id in order; empty for specials."""

    def _rules(self) -> dict[str, Any]:
        """The rules that split text into words, as in `tokenizer.json`."""
        return {"normalizer": None, "pre_tokenizer": BYTE_LEVEL_RULE}

    @abstractmethod
    def encode_array(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Each text's ids as an integer array, computed on one thread; used by preparation."""

    @abstractmethod
    def to_json(self) -> str:
        """The tokenizer in the format of the `tokenizers` library (`tokenizer.json`)."""

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without added specials; specials inside of the text are encoded as characters."""
        return self.encode_array([text])[0].tolist()

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text."""
        return [ids.tolist() for ids in self.encode_array(texts)]

    @cached_property
    def _byte_table(self) -> dict[int, bytes]:
        table = dict(enumerate(self._token_table()))
        table.update({id_: text.encode() for text, id_ in self.specials.items()})
        return table

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of the ids; specials as their text."""
        try:
            return b"".join([self._byte_table[int(i)] for i in ids])
        except KeyError as error:
            raise UserError(
                f"token id {error.args[0]} is not one of {self.name}'s {self.n_tokens} ids"
            ) from None

    def decode(self, ids: Iterable[int]) -> str:
        """Text of the ids; invalid UTF-8 (part of a character) becomes U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def token_bytes(self) -> np.ndarray:
        """Number of raw bytes of each id, int64 [vocab_size]; parts of characters have some, specials and padding 0."""
        lengths = np.zeros(self.vocab_size, dtype=np.int64)
        table = self._token_table()
        lengths[: len(table)] = [len(token) for token in table]
        lengths[[i for i in self.specials.values() if i < self.vocab_size]] = 0
        return lengths

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 [hex] of the tokens in order, the specials, and the rules that split text into words."""
        digest = hashlib.sha256()
        for token in self._token_table():
            if not token:  # specials are hashed below
                continue
            digest.update(len(token).to_bytes(4, "little") + token)
        another_end = [] if self.eos == EOS else [self.eos]
        digest.update(json.dumps([self.specials, self._rules(), *another_end], sort_keys=True).encode())
        return digest.hexdigest()

    def save(self, folder: str | Path) -> Path:
        """Write `tokenizer.json`, whose path it returns, and `tokenizer_config.json`, which `AutoTokenizer` reads."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": self.decode([self.bos_id]),
            "eos_token": self.eos,
            "clean_up_tokenization_spaces": False,
            "danalab_name": self.name,
            **({} if self.eos == EOS else {"danalab_eos": self.eos}),
        }
        write_json(folder / "tokenizer_config.json", settings)
        write_atomically(folder / "tokenizer.json", self.to_json())
        return folder / "tokenizer.json"


def reject_surrogates(text: str) -> None:
    """Check that the text has no lone surrogates, which have no UTF-8 encoding."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise UserError(
            f"text has U+{code:04X}, half of a surrogate pair, at character {error.start}"
        ) from None


_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in set(_PRINTABLE)]
CHARACTER_OF_BYTE = {byte: chr(byte) for byte in _PRINTABLE} | {
    b: chr(256 + n) for n, b in enumerate(_OTHERS)
}
BYTE_OF_CHARACTER = {character: byte for byte, character in CHARACTER_OF_BYTE.items()}


def to_printable(token: bytes) -> str:
    """A token as written in `tokenizer.json`."""
    return "".join([CHARACTER_OF_BYTE[byte] for byte in token])


def from_printable(token: str) -> bytes:
    """The bytes of a token written in `tokenizer.json`; `KeyError` for a character that is not byte-level."""
    return bytes([BYTE_OF_CHARACTER[character] for character in token])
