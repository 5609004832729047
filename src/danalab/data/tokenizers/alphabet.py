"""nanoGPT's character data: `meta.pkl` beside train.bin and val.bin lists one character for each id.

{"vocab_size": 65, "itos": {0: "\\n", 1: " ", ...}, "stoi": {"\\n": 0, " ": 1, ...}}
"""

from __future__ import annotations

import json
import pickle
import pickletools
from pathlib import Path
from typing import Any

from danalab.data.tokenizers.base import SPECIALS
from danalab.data.tokenizers.plain import CharacterTokenizer, read_words, tokenizer_json
from danalab.errors import UserError, first_line

META = "meta.pkl"
_MAX_BYTES = 1 << 24
_MAX_MEMO = 1 << 22
# Opcodes of dictionaries, lists, texts and integers, and of references to them: no other object can be made.
_PLAIN = {
    "PROTO", "FRAME", "STOP", "MARK", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "EMPTY_LIST", "LIST", "APPEND",
    "APPENDS", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1",
    "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GET", "BINGET", "LONG_BINGET", "NONE",
}  # fmt: skip


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
        return json.dumps(tokenizer_json(model, self.specials, self._rules()["pre_tokenizer"], {"type": "Fuse"}))


def read_meta(file: Path) -> tuple[int, list[str] | None]:
    """(number of ids, the character of each) of a `meta.pkl`; None: it has no characters. Runs no code of the file.

    UserError: not nanoGPT's, or more than dictionaries, lists, texts and integers.
    """
    advice = 'put a tokenizer.json beside it, or a tokens.json of {"vocab_size": N}'
    try:
        if not file.is_file() or file.stat().st_size > _MAX_BYTES:
            raise ValueError("not a small file")
        content = file.read_bytes()
        for code, argument, _ in pickletools.genops(content):
            if code.name not in _PLAIN:
                raise ValueError(f"it holds more than texts and integers ({code.name})")
            if "PUT" in code.name and int(argument or 0) > _MAX_MEMO:
                raise ValueError("it claims more objects than it has")
        meta = pickle.loads(content)
    except OSError as error:
        raise UserError(f"{file}: {error.strerror or error}") from error
    except Exception as error:  # a damaged pickle may raise almost anything
        raise UserError(f"{file}: not read: {first_line(error)}; {advice}") from error
    itos, stoi, size = (meta.get(key) if isinstance(meta, dict) else None for key in ("itos", "stoi", "vocab_size"))
    if isinstance(itos, dict):
        itos = [itos.get(id_) for id_ in range(len(itos))]
    alphabet = _checked(itos, file) if isinstance(itos, list) else None
    if size is None and alphabet is not None:
        size = len(alphabet)
    if type(size) is not int or not 0 < size <= 1 << 28 or (alphabet is not None and len(alphabet) != size):
        raise UserError(f"{file}: not nanoGPT's: no vocab_size, or another than the number of characters; {advice}")
    if alphabet is not None and stoi not in (None, {character: id_ for id_, character in enumerate(alphabet)}):
        raise UserError(f"{file}: its stoi and itos disagree; {advice}")
    return size, alphabet


def _checked(alphabet: list[Any], file: str | Path) -> list[str]:
    """The alphabet, of distinct single characters."""
    for id_, text in enumerate(alphabet):
        if not isinstance(text, str) or len(text) != 1 or 0xD800 <= ord(text) < 0xE000:
            raise UserError(f"{file}: id {id_} is {text!r:.40}; it must be a character, or give a tokenizer.json")
    if len(set(alphabet)) < len(alphabet) or not alphabet:
        raise UserError(f"{file}: {len(alphabet)} ids for {len(set(alphabet))} characters; each needs one of its own")
    return alphabet
