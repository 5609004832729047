"""The character tokenizer: the 96 letters, digits, punctuation marks and white space of plain English text.

The table is that of the literature's character-level Shakespeare. Other characters are an error.
"""

import json
import string
from collections.abc import Sequence

import numpy as np

from danalab.data.tokenizers.base import CHAT_SPECIALS, EOS, Tokenizer
from danalab.data.tokenizers.byte_level import byte_level_json
from danalab.errors import UserError

ALPHABET = "".join(sorted(string.ascii_letters + string.digits + string.punctuation + " \n"))
_ABSENT = 255  # as an id: none; as a byte: any non-ASCII character


class CharacterTokenizer(Tokenizer):
    """The 96 characters in code order, then `<|endoftext|>` (id 96) and the chat marks."""

    name = "characters"

    def __init__(self) -> None:
        self.specials = {spelling: len(ALPHABET) + n for n, spelling in enumerate((EOS, *CHAT_SPECIALS))}
        self.n_tokens = len(ALPHABET) + len(self.specials)
        self._ids = np.full(256, _ABSENT, np.uint8)
        self._ids[np.frombuffer(ALPHABET.encode(), np.uint8)] = np.arange(len(ALPHABET))

    def _token_table(self) -> list[bytes]:
        return [character.encode() for character in ALPHABET]

    def encode_array(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [self._encoded(text) for text in texts]

    def _encoded(self, text: str) -> np.ndarray:
        raw = text.encode() if text.isascii() else bytes(min(ord(c), _ABSENT) for c in text)
        ids = self._ids[np.frombuffer(raw, np.uint8)]
        if len(unknown := np.flatnonzero(ids == _ABSENT)):
            place = int(unknown[0])
            raise UserError(
                f"character {text[place]!r} (U+{ord(text[place]):04X}) at character {place} is not one of the "
                f"{len(ALPHABET)} of the tokenizer 'characters'; use bytes, gpt2 or a trained tokenizer"
            )
        return ids

    def to_json(self) -> str:
        return json.dumps(byte_level_json(self._token_table(), [], self.specials))
