"""Constrained decoding: text that matches a JSON schema, by the grammar engine of llguidance.

A schema of a few hundred bytes can take memory without end. So a child process with limits on time and memory compiles
it first, for a vocabulary of bytes; what the child survives is compiled here.

A model fills whatever a schema leaves open. So an object that names properties has no others unless
`additionalProperties` asks for them, and integers without limits have 15 digits at most.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from danalab.errors import UserError, first_line, import_extra

if TYPE_CHECKING:
    from danalab.data.tokenizers import Tokenizer

MAX_SCHEMA = 100_000  # characters
CPU_SECONDS, MEMORY_BYTES, WALL_SECONDS = 0.4, 512 << 20, 5
"""Limits on the child: time after its imports, address space, and time by the clock."""
_CHILDREN = threading.BoundedSemaphore(4)
"""Children at the same time."""
TOO_LARGE = "it is too large, or takes too long to compile"
MAX_INTEGER = 10**15 - 1
_FUEL = 150_000  # of llguidance, for compiling: some tenths of a second
_AHEAD = 64  # tokens that are tried
_LIMITS = {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "enum", "const", "multipleOf"}
_TOGETHER = {"allOf", "anyOf", "oneOf", "$ref"}
_COMPACT: Any = {"item_separator": ",", "key_separator": ":", "whitespace_flexible": False}

_CHILD = f"""
import resource, signal, sys
import llguidance
schema = sys.stdin.read()
resource.setrlimit(resource.RLIMIT_AS, ({MEMORY_BYTES}, {MEMORY_BYTES}))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
signal.setitimer(signal.ITIMER_PROF, {CPU_SECONDS})
grammar = llguidance.LLMatcher.grammar_from_json_schema(schema)
limits = llguidance.LLParserLimits(initial_lexer_fuel={_FUEL})
matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), grammar, log_level=0, limits=limits)
print(matcher.get_error())
if not matcher.is_error():
    matcher.compute_bitmask()
"""


class SchemasBusy(UserError):
    """Too many schemas are being compiled; this one may be tried again."""


class JsonConstraint:
    """Tokens whose text is one JSON value that matches a schema, then the end-of-text token.

    Args:
        schema: JSON schema. The text is compact, without whitespace between its parts.
    Raises:
        MissingExtra: llguidance is not installed.
        UserError: the schema is wrong, too large, uses something that is not supported, or allows no text.
    """

    def __init__(self, tokenizer: Tokenizer, schema: Mapping[str, Any]):
        import_extra("llguidance", "constrained decoding")
        self._bits = np.zeros(-(-tokenizer.n_tokens // 32), dtype=np.uint32)
        self._n_tokens = tokenizer.n_tokens
        try:
            given = json.dumps(schema)
            obstacle = TOO_LARGE if len(given) > MAX_SCHEMA else ""
            if not obstacle and self._compile(tokenizer, json.dumps(_closed(schema))):
                obstacle = self._compile(tokenizer, given)  # closed, a schema may allow nothing
        except RecursionError:
            obstacle = "it is nested too deeply"
        if obstacle:
            raise UserError(f"the JSON schema cannot be used: {obstacle}")

    def _compile(self, tokenizer: Tokenizer, schema: str) -> str:
        """Make the grammar of a schema; returns what is wrong with it, empty: nothing."""
        import llguidance

        obstacle = _obstacle(schema)
        if obstacle:
            return obstacle
        grammar = llguidance.LLMatcher.grammar_from_json_schema(schema, defaults=_COMPACT)
        limits = llguidance.LLParserLimits(initial_lexer_fuel=_FUEL)
        self._matcher = llguidance.LLMatcher(_tokenizer(tokenizer), grammar, log_level=0, limits=limits)
        return first_line(self._matcher.get_error()) if self._matcher.is_error() else self._dead_end()

    def _dead_end(self) -> str:
        """What is wrong where no text is allowed, as far as tokens follow without a choice; else empty."""
        ahead = self.copy()
        for _ in range(_AHEAD):
            allowed = np.flatnonzero(ahead.mask())
            if not len(allowed):  # e.g. a schema that only refers to itself
                return "it allows no text"
            if len(allowed) > 1:
                break
            ahead.advance(int(allowed[0]))
            if ahead._matcher.is_stopped() and not ahead._matcher.is_error():
                break
        return ""

    def copy(self) -> JsonConstraint:
        """One for another text, without the work of compiling the schema."""
        other = copy.copy(self)
        other._matcher, other._bits = self._matcher.deep_copy(), self._bits.copy()
        return other

    def mask(self) -> np.ndarray:
        """Allowed tokens, bool [n_tokens]; none where the grammar has failed, e.g. by growing too large."""
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        if self._matcher.is_error():
            self._bits[:] = 0
        return np.unpackbits(self._bits.view(np.uint8), bitorder="little")[: self._n_tokens].astype(bool)

    def advance(self, token: int) -> None:
        """Take note of the token that was drawn; it must be allowed."""
        self._matcher.consume_token(token)


@lru_cache(maxsize=256)
def _obstacle(schema: str) -> str:
    """What is wrong with a schema, by a child process that compiles it within its limits; empty: nothing.

    Raises SchemasBusy: too many others are being compiled.
    """
    if not _CHILDREN.acquire(timeout=1):
        raise SchemasBusy("too many JSON schemas are being compiled; try again later")
    try:
        command = [sys.executable, "-c", _CHILD]
        done = subprocess.run(command, input=schema, timeout=WALL_SECONDS, capture_output=True, text=True)
    except subprocess.TimeoutExpired:
        return TOO_LARGE
    finally:
        _CHILDREN.release()
    if done.returncode < 0:  # killed by a limit
        return TOO_LARGE
    said = (done.stdout or done.stderr).strip().splitlines()
    return said[0 if done.stdout else -1][:300] if said else ""


def _closed(schema: Any) -> Any:
    """The schema without properties that it does not name, and with limits of integers."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    closed = {
        name: value if name in ("enum", "const", "default") else _closed(value)
        for name, value in schema.items()
    }
    named = closed.get("properties")
    if isinstance(named, Mapping) and not _TOGETHER & closed.keys():
        closed.setdefault("additionalProperties", False)
        required = closed.get("required")
        others = required if isinstance(required, list) else []
        closed["properties"] = {
            **named,
            **{each: {} for each in others if isinstance(each, str) and each not in named},
        }
    if closed.get("type") == "integer" and not _LIMITS & closed.keys():
        closed |= {"minimum": -MAX_INTEGER, "maximum": MAX_INTEGER}
    return closed


@lru_cache(maxsize=4)
def _tokenizer(tokenizer: Tokenizer) -> Any:
    """The tokenizer in llguidance's form; made once, because it builds a tree of all tokens."""
    import llguidance

    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Callable(tokenizer)))


class _Callable:
    """What llguidance asks of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer):
        self._encode = tokenizer.encode
        self.tokens = [tokenizer.decode_bytes([id_]) for id_ in range(tokenizer.n_tokens)]
        self.special_token_ids = sorted(set(tokenizer.specials.values()))
        self.eos_token_id, self.bos_token_id = tokenizer.eos_id, None

    def __call__(self, text: bytes | str) -> list[int]:
        return self._encode(text.decode("utf-8", errors="replace") if isinstance(text, bytes) else text)
