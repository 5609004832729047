"""Constrained decoding: text that matches a JSON schema, by the grammar engine of llguidance."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from danalab.errors import UserError, import_extra

if TYPE_CHECKING:
    from danalab.data.tokenizers import Tokenizer

_tokenizers: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


class JsonConstraint:
    """Tokens whose text is one JSON value that matches a schema, then the end-of-text token.

    Args:
        schema: JSON schema; None: any object.
        whitespace: allow whitespace between the parts, as the model likes; otherwise the text is compact.
    Raises:
        MissingExtra: llguidance is not installed.
        UserError: the schema is wrong, uses something that is not supported, or allows no text.
    """

    def __init__(self, tokenizer: Tokenizer, schema: Mapping[str, Any] | None = None, *, whitespace: bool = False):
        llguidance = import_extra("llguidance", "serve", "constrained decoding")
        schema = {"type": "object"} if schema is None else dict(schema)
        compact: Any = {"item_separator": ",", "key_separator": ":", "whitespace_flexible": False}
        form = None if whitespace else compact
        try:
            grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), defaults=form)
        except (TypeError, ValueError, RecursionError) as error:
            raise UserError(f"the JSON schema cannot be used: {error}") from None
        self._matcher = llguidance.LLMatcher(_tokenizer(tokenizer), grammar, log_level=0)
        self._bits = np.zeros(-(-tokenizer.n_tokens // 32), dtype=np.uint32)
        self._n_tokens = tokenizer.n_tokens
        if self._matcher.is_error():
            raise UserError(f"the JSON schema cannot be used: {self._matcher.get_error().splitlines()[0]}")
        if not self.mask().any():  # e.g. a schema that only refers to itself
            raise UserError("the JSON schema allows no text")

    def mask(self) -> np.ndarray:
        """Allowed tokens, bool [n_tokens]; none where the grammar has failed, e.g. by growing too large."""
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        if self._matcher.is_error():
            self._bits[:] = 0
        return np.unpackbits(self._bits.view(np.uint8), bitorder="little")[: self._n_tokens].astype(bool)

    def advance(self, token: int) -> None:
        """Take note of the token that was drawn; it must be allowed."""
        self._matcher.consume_token(token)


def _tokenizer(tokenizer: Tokenizer) -> Any:
    """The tokenizer in llguidance's form; made once, because it builds a tree of all tokens."""
    if tokenizer not in _tokenizers:
        import llguidance

        _tokenizers[tokenizer] = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Callable(tokenizer)))
    return _tokenizers[tokenizer]


class _Callable:
    """What llguidance asks of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer):
        self._encode = tokenizer.encode
        self.tokens = [tokenizer.decode_bytes([id_]) for id_ in range(tokenizer.n_tokens)]
        self.special_token_ids = sorted(set(tokenizer.specials.values()))
        self.eos_token_id, self.bos_token_id = tokenizer.eos_id, None

    def __call__(self, text: bytes | str) -> list[int]:
        return self._encode(text.decode("utf-8", errors="replace") if isinstance(text, bytes) else text)
