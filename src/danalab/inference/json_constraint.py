"""Constrained decoding: text that matches a JSON schema, by the grammar engine of llguidance.

    schema -> limits on its size -> only what it names, integers that JSON programs can read -> grammar -> masks

A model fills whatever a schema leaves open. So an object that names properties has no others unless
`additionalProperties` asks for them, and integers without limits have 15 digits at most.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from danalab.errors import UserError, import_extra
from danalab.inference.request import CONSTRAINTS

if TYPE_CHECKING:
    from danalab.data.tokenizers import Tokenizer

MAX_ENTRIES, MAX_PROPERTIES, MAX_DEPTH, MAX_RANGES, MAX_PATTERNS = 5000, 1000, 120, 300, 50
MAX_MULTIPLE, MAX_EXPANDED = 10_000, 5000
"""Limits on a schema, so that its grammar takes a tenth of a second, and less than a second on a slow machine. A range
of numbers takes 0.3 ms. MAX_MULTIPLE: sum of multipleOf without their points. MAX_EXPANDED: schemas that result where
alternatives hold together with others, which the grammar multiplies out."""
MAX_INTEGER = 10**15 - 1
_INTEGER = "danalab-integer"  # a definition of integers, so that all of them together take the time of one
_LIMITS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
_TOO_LARGE = ("too big", "too large", "too many", "max is", "limit")  # in what llguidance says
_FUEL = 150_000  # of llguidance, for compiling: some tenths of a second
_AHEAD = 64  # tokens that are tried
_NO_TOKEN = "NoExtension"  # llguidance's word for a text that cannot go on
_MAPS, _LISTS = ("properties", "patternProperties", "$defs", "definitions"), ("anyOf", "oneOf", "allOf", "prefixItems")
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
        if schema is None:
            choices: list[Any] = [{"type": "object"}]
        else:
            _check_size(schema)
            closed = _closed(schema, _combined(schema))
            definitions = closed.get("$defs", {})
            if isinstance(definitions, Mapping):
                integers = {"type": "integer", "minimum": -MAX_INTEGER, "maximum": MAX_INTEGER}
                closed = {**closed, "$defs": {**definitions, _INTEGER: integers}}
            choices = [closed, schema]
        self._bits = np.zeros(-(-tokenizer.n_tokens // 32), dtype=np.uint32)
        self._n_tokens = tokenizer.n_tokens
        for number, chosen in enumerate(choices, 1):
            try:
                self._matcher = _matcher(tokenizer, chosen, whitespace)
                self._check_text()
                return
            except UserError as error:  # closed, a schema may allow nothing
                if number == len(choices) or any(each in str(error) for each in _TOO_LARGE):
                    raise

    def _check_text(self) -> None:
        """UserError: no text is allowed, as far as tokens follow without a choice."""
        ahead = self.copy()
        for _ in range(_AHEAD):
            allowed = np.flatnonzero(ahead.mask())
            told = ahead._matcher.get_error().splitlines()[:1] if ahead._matcher.is_error() else []
            if told and _NO_TOKEN not in told[0]:
                raise UserError(f"the JSON schema cannot be used: {told[0]:.300}")
            if not len(allowed):  # e.g. a schema that only refers to itself
                raise UserError("the JSON schema allows no text")
            if len(allowed) > 1:
                return
            ahead.advance(int(allowed[0]))
            if ahead._matcher.is_stopped() and not ahead._matcher.is_error():
                return

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


def _matcher(tokenizer: Tokenizer, schema: Mapping[str, Any], whitespace: bool) -> Any:
    llguidance = import_extra("llguidance", "constrained decoding")
    compact: Any = {"item_separator": ",", "key_separator": ":", "whitespace_flexible": False}
    form = None if whitespace else compact
    try:
        grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), defaults=form)
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"the JSON schema cannot be used: {str(error).splitlines()[0]:.300}") from None
    limits = llguidance.LLParserLimits(initial_lexer_fuel=_FUEL)
    matcher = llguidance.LLMatcher(_tokenizer(tokenizer), grammar, log_level=0, limits=limits)
    if matcher.is_error():
        raise UserError(f"the JSON schema cannot be used: {matcher.get_error().splitlines()[0]:.300}")
    return matcher


def _check_size(schema: Mapping[str, Any]) -> None:
    """UserError: compiling the schema would take too long."""
    waiting: list[tuple[Any, int]] = [(schema, 0)]
    sizes = {"entries": 0, "properties": 0, "levels": 0, "ranges of numbers": 0, "patterns of names": 0, "multiples": 0}
    values = (MAX_ENTRIES, MAX_PROPERTIES, MAX_DEPTH, MAX_RANGES, MAX_PATTERNS, MAX_MULTIPLE)
    limits = dict(zip(sizes, values, strict=True))
    while waiting:
        value, depth = waiting.pop()
        inner = list(value.values()) if isinstance(value, Mapping) else value if isinstance(value, list) else []
        sizes["entries"] += len(inner)
        sizes["levels"] = max(sizes["levels"], depth)
        if isinstance(value, Mapping):
            named, multiple, kinds = value.get("properties"), value.get("multipleOf"), value.get("type")
            sizes["properties"] += len(named) if isinstance(named, Mapping) else 0
            is_range = (isinstance(kinds, list) and "integer" in kinds) or any(name in value for name in _LIMITS)
            sizes["ranges of numbers"] += is_range
            patterns = value.get("patternProperties")
            sizes["patterns of names"] += len(patterns) if isinstance(patterns, Mapping) else 0
            if isinstance(multiple, (int, float)):
                number = Decimal(repr(multiple) if isinstance(multiple, float) else int(multiple))
                digits = int("".join(map(str, number.as_tuple().digits))) if number.is_finite() else 0
                if not 0 < digits <= MAX_MULTIPLE or not int(number.as_tuple().exponent) >= -6 or number < 0:
                    raise UserError(
                        f"the JSON schema cannot be used: multipleOf is {multiple!r:.40}; it must be positive, with at "
                        f"most 6 decimals, and at most {MAX_MULTIPLE:,} without the point"
                    )
                sizes["multiples"] += digits
        for name, size in sizes.items():
            if size > limits[name]:
                raise UserError(f"the JSON schema cannot be used: it has more than {limits[name]:,} {name}")
        waiting.extend((each, depth + 1) for each in inner)
    if _Expansion(schema).count(schema)[1] > MAX_EXPANDED:
        raise UserError(f"the JSON schema cannot be used: it combines more than {MAX_EXPANDED:,} alternatives")


class _Expansion:
    """Counts what a grammar multiplies out: alternatives, with what holds together with them, also by references."""

    def __init__(self, schema: Mapping[str, Any]):
        self._root, self._known = schema, dict[str, tuple[int, int]]()

    def count(self, schema: Any) -> tuple[int, int]:
        """(alternatives, schemas in all of them), each up to one more than `MAX_EXPANDED`."""
        alternatives, beside, parts = 1, 0, 0
        choices: dict[str, list[tuple[int, int]]] = {"anyOf": [], "oneOf": []}
        for name, _, each, _ in _children(schema, False) if isinstance(schema, Mapping) else ():
            if name in choices:
                choices[name].append(self.count(each))
                continue
            several, size = self._referred(each) if name == "$ref" else self.count(each)
            beside += size
            if name in ("allOf", "$ref"):
                alternatives, parts = alternatives * several, parts + (several > 1)
        for options in filter(None, choices.values()):
            alternatives, parts = alternatives * sum(several for several, _ in options), parts + 1
        size = 1 + sum(size for options in choices.values() for _, size in options)
        size += beside if parts + (beside > 0) < 2 else alternatives * max(beside, 1)
        return min(alternatives, MAX_EXPANDED + 1), min(size, MAX_EXPANDED + 1)

    def _referred(self, reference: Any) -> tuple[int, int]:
        kind, _, name = str(reference).removeprefix("#/").partition("/")
        definitions = self._root.get(kind) if kind in ("$defs", "definitions") else None
        if not isinstance(definitions, Mapping) or name not in definitions:
            return 1, 1
        if name not in self._known:
            self._known[name] = (1, 1)  # where it refers to itself
            self._known[name] = (self.count(definitions[name])[0], 1)
        return self._known[name]


def _children(schema: Mapping[str, Any], inside: bool) -> Iterator[tuple[str, Any, Any, bool]]:
    """(keyword, key, schema, whether it holds together with others) of each schema that is written in one."""
    together = inside or sum(name in schema for name in ("properties", "allOf", "anyOf", "oneOf", "$ref")) > 1
    for name, value in schema.items():
        if name in _MAPS and isinstance(value, Mapping):
            yield from ((name, key, each, False) for key, each in value.items())
        elif name in _LISTS and isinstance(value, list):
            several = name == "allOf" and len(value) > 1
            yield from ((name, key, each, together or several) for key, each in enumerate(value))
        elif name in ("items", "additionalProperties"):
            yield name, None, value, False
    if together:
        yield "$ref", None, schema.get("$ref"), True


def _combined(schema: Any, inside: bool = False) -> set[str]:
    """References to schemas that hold together with others: what one does not name, the others may."""
    if isinstance(schema, str):
        return {schema}
    found = _children(schema, inside) if isinstance(schema, Mapping) else ()
    return set[str]().union(*(_combined(each, together) for name, _, each, together in found if each is not None))


def _closed(schema: Any, combined: set[str], *, inside: bool = False, pointer: str = "#") -> Any:
    """The schema without properties that it does not name, and with limits of integers."""
    if not isinstance(schema, Mapping):
        return schema
    closed = {name: copy.copy(value) for name, value in schema.items()}
    inside = inside or pointer in combined
    together = inside
    for name, key, each, is_inside in _children(schema, inside):
        if name == "$ref":
            together = True
            continue
        made = _closed(each, combined, inside=is_inside, pointer=f"{pointer}/{name}/{key}")
        if key is None:
            closed[name] = made
        else:
            closed[name][key] = made
    named, required = closed.get("properties"), closed.get("required")
    if isinstance(named, Mapping) and not together:
        closed.setdefault("additionalProperties", False)
        others = [each for each in required if isinstance(each, str)] if isinstance(required, list) else []
        closed["properties"] = {**named, **{each: {} for each in others if each not in named}}
    kinds = closed.get("type")
    if "integer" in (kinds if isinstance(kinds, list) else [kinds]) and not {"enum", "const"} & closed.keys():
        limits = [closed.get(name) for name in _LIMITS]
        if kinds == "integer" and limits == [None] * 4 and "multipleOf" not in closed:
            return {"$ref": f"#/$defs/{_INTEGER}"}
        if all(each is None or (isinstance(each, (int, float)) and abs(each) <= MAX_INTEGER) for each in limits):
            closed.setdefault("minimum", -MAX_INTEGER)
            closed.setdefault("maximum", MAX_INTEGER)
    return closed


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


CONSTRAINTS.add("json", JsonConstraint)
