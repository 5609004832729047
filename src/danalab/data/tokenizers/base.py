"""What every tokenizer here is: a table of byte strings, one for each id, with a few specials.

Ids [0, n_tokens) are real; the vocabulary is padded to a multiple of 64, which matrix units like, so ids
[n_tokens, vocab_size) exist in the model and are never produced. Text never encodes to a special: whoever writes
`<|endoftext|>` into a document gets the characters, not the id.
"""

from __future__ import annotations

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
"""Ends every document; at the head of a sequence it serves as the beginning-of-sequence mark."""
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
"""Marks of roles and tool calls in a rendered conversation."""
BYTE_LEVEL_RULE = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
"""GPT-2's rule for cutting text into words, as `tokenizer.json` names it; used by all that are made here."""


def padded(n: int, multiple: int = 64) -> int:
    """The next multiple of 64."""
    return -(-n // multiple) * multiple


class Tokenizer(ABC):
    """Text to ids and back, without loss for any Unicode text.

    Attributes:
        name: how people call it, e.g. "gpt2" or "bpe-4096".
        n_tokens: number of real ids.
        specials: spelling -> id of the specials, `<|endoftext|>` and the chat marks.
    """

    name: str
    n_tokens: int
    specials: dict[str, int]

    @property
    def vocab_size(self) -> int:
        """Rows that a model's embedding needs: `n_tokens` padded to a multiple of 64."""
        return padded(self.n_tokens)

    @property
    def eos_id(self) -> int:
        """Id of `<|endoftext|>`."""
        return self.specials[EOS]

    @abstractmethod
    def _token_table(self) -> list[bytes]:
        """Raw bytes of each id that text can produce, in order of ids; empty for specials."""

    def _rules(self) -> dict[str, Any]:
        """How text is cut into words, as `tokenizer.json` says it."""
        return {"normalizer": None, "pre_tokenizer": BYTE_LEVEL_RULE}

    @abstractmethod
    def encode_array(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Each text's ids as an integer array, on one thread: what the preparing processes call."""

    @abstractmethod
    def to_json(self) -> str:
        """The tokenizer in the format of the `tokenizers` library (`tokenizer.json`)."""

    def encode(self, text: str) -> list[int]:
        """Ids of a text, no special added; the spelling of a special is plain text."""
        return self.encode_array([text])[0].tolist()

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text."""
        return [ids.tolist() for ids in self.encode_array(texts)]

    @cached_property
    def _byte_table(self) -> dict[int, bytes]:
        table = dict(enumerate(self._token_table()))
        table.update({id_: spelling.encode() for spelling, id_ in self.specials.items()})
        return table

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes that the ids stand for; specials as they are spelled.

        Raises:
            UserError: an id that the tokenizer does not have.
        """
        table = self._byte_table
        try:
            return b"".join([table[int(i)] for i in ids])
        except KeyError as error:
            raise UserError(f"token id {error.args[0]} is not one of {self.name}'s {self.n_tokens} ids") from None

    def decode(self, ids: Iterable[int]) -> str:
        """Text of the ids; bytes that are not UTF-8 (a character cut in two) become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def token_bytes(self) -> np.ndarray:
        """Raw bytes of each id, int64 [vocab_size]; 0 for specials and for padding.

        Counted on the raw tokens: a token that is half a character has no decoded text, but it has bytes.
        """
        lengths = np.zeros(self.vocab_size, dtype=np.int64)
        table = self._token_table()
        lengths[: len(table)] = [len(token) for token in table]
        lengths[[i for i in self.specials.values() if i < self.vocab_size]] = 0
        return lengths

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 [hex] of the tokens in order, the specials, and the rules that cut text into words."""
        digest = hashlib.sha256()
        for token in self._token_table():
            if not token:  # specials are hashed by their spelling below
                continue
            digest.update(len(token).to_bytes(4, "little") + token)
        digest.update(json.dumps([self.specials, self._rules()], sort_keys=True).encode())
        return digest.hexdigest()

    def save(self, folder: str | Path) -> Path:
        """Write `tokenizer.json` and `tokenizer_config.json` into a folder; returns the path of the first.

        `transformers.AutoTokenizer.from_pretrained(folder)` loads the result.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": EOS,
            "eos_token": EOS,
            "clean_up_tokenization_spaces": False,
            "danalab_name": self.name,
        }
        write_json(folder / "tokenizer_config.json", settings)
        write_atomically(folder / "tokenizer.json", self.to_json())
        return folder / "tokenizer.json"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, n_tokens={self.n_tokens})"


def reject_surrogates(text: str) -> None:
    """Half of a surrogate pair is no character: it has no bytes to encode.

    Raises:
        UserError: the text has one.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise UserError(
            f"text has U+{code:04X}, half of a surrogate pair, at character {error.start}: not Unicode"
        ) from None
