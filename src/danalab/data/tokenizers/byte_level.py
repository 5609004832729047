"""The byte tokenizer: each byte is a token, and its value is the id; the specials follow."""

import json
from collections.abc import Sequence

import numpy as np

from danalab.data.tokenizers.alphabet import to_printable
from danalab.data.tokenizers.base import BYTE_LEVEL_RULE, CHAT_SPECIALS, EOS, Tokenizer, reject_surrogates


class ByteTokenizer(Tokenizer):
    """256 bytes, `<|endoftext|>` (id 256) and the chat marks."""

    name = "bytes"

    def __init__(self) -> None:
        self.specials = {spelling: 256 + n for n, spelling in enumerate((EOS, *CHAT_SPECIALS))}
        self.n_tokens = 256 + len(self.specials)

    def _token_table(self) -> list[bytes]:
        return [bytes([value]) for value in range(256)]

    def encode_array(self, texts: Sequence[str]) -> list[np.ndarray]:
        for text in texts:
            reject_surrogates(text)
        return [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts]

    def to_json(self) -> str:
        return json.dumps(byte_level_json(self._token_table(), [], self.specials))


def byte_level_json(table: list[bytes], merges: list[tuple[bytes, bytes]], specials: dict[str, int]) -> dict:
    """The content of a `tokenizer.json` for a byte-level BPE."""
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": s, **plain, "special": True} for s, i in specials.items()],
        "normalizer": None,
        "pre_tokenizer": BYTE_LEVEL_RULE,
        "post_processor": None,
        "decoder": BYTE_LEVEL_RULE,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {to_printable(token): id_ for id_, token in enumerate(table) if token},
            "merges": [[to_printable(left), to_printable(right)] for left, right in merges],
        },
    }
