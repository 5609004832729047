"""JSON by a schema, from a model that knows nothing about JSON."""

from __future__ import annotations

import json
import random
import time

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from danalab.data.tokenizers import load_tokenizer
from danalab.errors import UserError
from danalab.inference import Engine, JsonConstraint, Request, SamplingParameters
from danalab.models import ModelConfig, build_model

pytest.importorskip("llguidance")
BYTES = load_tokenizer("bytes")
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["a", "b"]},
        "fine": {"type": "boolean"},
    },
    "required": ["name", "kind", "fine"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(build_model(ModelConfig("enoki", 32, 1, 2, 16, 64, BYTES.vocab_size, 256), seed=1), BYTES)


def test_every_text_matches_the_schema_and_ends(engine: Engine):
    requests = [
        Request(
            [65],
            SamplingParameters(max_tokens=120, temperature=1.0, seed=seed),
            JsonConstraint(BYTES, SCHEMA),
        )
        for seed in range(6)
    ]
    for completion in engine.generate(requests):
        assert completion.finish_reason == "stop"
        assert completion.tokens[-1] == BYTES.eos_id
        jsonschema.validate(json.loads(BYTES.decode(completion.tokens[:-1])), SCHEMA)


def test_requests_with_and_without_a_constraint_are_decoded_together(engine: Engine):
    parameters = SamplingParameters(max_tokens=20, temperature=0)
    free = engine.generate([Request([65], parameters)])[0]
    both = engine.generate(
        [Request([65], parameters), Request([65], parameters, JsonConstraint(BYTES, SCHEMA))]
    )
    assert both[0].tokens == free.tokens
    assert BYTES.decode(both[1].tokens).startswith('{"name":"')


@pytest.mark.parametrize(
    "schema", [{"type": "objec"}, {"type": "object", "properties": 3}, {"$ref": "#/nothing"}]
)
def test_a_schema_that_cannot_be_used_is_refused(schema: dict[str, object]):
    with pytest.raises(UserError, match="the JSON schema cannot be used"):
        JsonConstraint(BYTES, schema)


def test_there_is_no_whitespace_between_the_parts():
    constraint = JsonConstraint(BYTES, SCHEMA)
    constraint.advance(ord("{"))
    assert not constraint.mask()[ord(" ")]


def written(schema: dict[str, object], constraint: JsonConstraint, seed: int, limit: int = 400) -> str:
    """A text of random tokens that the constraint allows, which ends only where it has to."""
    generator = random.Random(seed)
    tokens: list[int] = []
    while len(tokens) < limit:
        allowed = constraint.mask().nonzero()[0].tolist()
        assert allowed, schema
        going_on = [token for token in allowed if token != BYTES.eos_id]
        if not going_on:
            return BYTES.decode(tokens)
        tokens.append(generator.choice(going_on))
        constraint.advance(tokens[-1])
    raise AssertionError(f"{schema} does not end: {BYTES.decode(tokens)!r}")


CITY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Paris"]}}, "required": ["city"]}
NAMED = {"a": {"type": "integer"}, "b": {"type": ["integer", "null"], "minimum": 3}}
ENDING = {
    "no word on others": CITY,
    "inside others": {"type": "array", "items": CITY, "minItems": 2, "maxItems": 2},
    "by reference": {
        "$defs": {"C": CITY},
        "type": "object",
        "properties": {"from": {"$ref": "#/$defs/C"}, "to": CITY},
    },
    "in a choice": {"anyOf": [CITY, {"type": "object", "properties": {"x": {"type": "boolean"}}}]},
    "no properties": {"type": "object", "properties": {}},
    "integers": {"type": "object", "properties": NAMED, "required": ["a", "b"]},
    "required and not named": {"type": "object", "properties": NAMED, "required": ["a"]},
    "a bare integer": {"type": "integer"},
    "allOf of one": {"allOf": [CITY]},
}


@pytest.mark.parametrize("schema", ENDING.values(), ids=list(ENDING))
def test_a_text_has_what_the_schema_names_and_ends(schema: dict[str, object]):
    """By random tokens that never choose to end: whatever is left open would go on for ever."""
    constraint = JsonConstraint(BYTES, schema)
    for seed in range(3):
        jsonschema.validate(json.loads(written(schema, constraint.copy(), seed)), schema)


TOGETHER = {
    "allOf of two": {
        "allOf": [CITY, {"type": "object", "properties": {"n": {"const": 1}}, "required": ["n"]}]
    },
    "allOf of references": {
        "$defs": {"A": CITY, "B": {"type": "object", "properties": {"n": {"const": 1}}, "required": ["n"]}},
        "allOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}],
    },
    "properties beside a choice": {**CITY, "anyOf": [{"properties": {"n": {"const": 1}}, "required": ["n"]}]},
    "others asked for": {**CITY, "additionalProperties": {"const": 1}},
    "any object": {"type": "object"},
}


@pytest.mark.parametrize("schema", TOGETHER.values(), ids=list(TOGETHER))
def test_what_schemas_name_together_is_allowed(schema: dict[str, object]):
    constraint = JsonConstraint(BYTES, schema)
    for token in b'{"city":"Rome","n":1}':
        assert constraint.mask()[token], schema
        constraint.advance(token)
    assert constraint.mask()[BYTES.eos_id]


def nested(levels: int, **more: object) -> dict[str, object]:
    schema: dict[str, object] = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}, **more}
    return schema


def combined(levels: int) -> dict[str, object]:
    """Alternatives beside properties, within each other: a grammar has their product."""
    schema: dict[str, object] = {"type": "integer"}
    for _ in range(levels):
        choice = [{"properties": {"b": {"type": "null"}}}, {"required": ["a"]}]
        schema = {"type": "object", "properties": {"a": schema}, "anyOf": choice}
    return schema


LARGE = {
    "ranges": {"anyOf": [{"type": "integer", "minimum": n} for n in range(1000)]},
    "ranges of choices": {"anyOf": [{"type": ["integer", "null"]} for n in range(1000)]},
    "many multiples": {"prefixItems": [{"type": "integer", "multipleOf": 9001 + n} for n in range(20)]},
    "patterns of names": {"patternProperties": {f"^a{n}[a-z]+": {"type": "integer"} for n in range(200)}},
    "combinations": combined(40),
    "combinations by reference": {
        "$defs": {
            f"d{n}": {
                "allOf": [
                    {"$ref": f"#/$defs/d{n + 1}"},
                    {"anyOf": [{"required": [f"x{n}"]}, {"required": ["y"]}]},
                ]
            }
            for n in range(20)
        },
        "$ref": "#/$defs/d0",
    },
    "combinations beside each other": {
        "allOf": [{"anyOf": [{"required": [f"{n}{m}"]} for m in "abc"]} for n in range(9)]
    },
    "repeats": {"type": "string", "pattern": "^((a{1000}){1000}){1000}$"},
    "alternatives": {"type": "string", "pattern": "^(a+)+(a|aa)*(a?){200}a{200}$"},
    "a bad pattern": {"type": "string", "pattern": "(["},
    "properties": {"type": "object", "properties": {f"p{n}": {"type": "integer"} for n in range(2000)}},
    "values": {"enum": [f"value {n}" for n in range(20_000)]},
    "multiples": {"type": "integer", "multipleOf": 999_983},
    "multiples of multiples": {"allOf": [{"type": "integer", "multipleOf": p} for p in (97, 101, 103, 107)]},
    "small multiples": {"type": "number", "multipleOf": 1e-9},
    "no multiples": {"type": "number", "multipleOf": 0},
    "levels": nested(800),
    "choices": {"anyOf": [{"anyOf": [{"anyOf": [{"type": "integer"}] * 20}] * 20}] * 20},
    "a length": {"type": "string", "maxLength": 2**63},
    "itself": nested(1, required=["a"]) | {"properties": {"a": {"$ref": "#"}}},
}


@pytest.mark.parametrize("schema", LARGE.values(), ids=list(LARGE))
def test_a_schema_is_compiled_or_refused_in_a_moment(schema: dict[str, object]):
    """Without limits some of these take minutes, or all of the memory."""
    start = time.perf_counter()
    try:
        JsonConstraint(BYTES, schema).mask()
    except UserError as error:
        told = str(error)
    else:
        told = "the JSON schema"
    assert told.startswith("the JSON schema")
    assert "\n" not in told
    assert time.perf_counter() - start < 30


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "$ref", "type"]), inner, max_size=3)
    ),
    max_leaves=6,
)
keywords = st.sampled_from([
    "type", "properties", "required", "additionalProperties", "items", "minItems", "maxItems", "enum", "const", "anyOf",
    "allOf", "oneOf", "$ref", "$defs", "pattern", "minimum", "exclusiveMaximum", "multipleOf", "minLength",
])  # fmt: skip
kinds = st.sampled_from(["object", "array", "integer", "number", "string", "null"])
schemas = st.recursive(
    st.fixed_dictionaries({"type": kinds}) | st.dictionaries(keywords, values | kinds, max_size=3),
    lambda inner: st.dictionaries(
        keywords,
        inner | st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
        max_size=3,
    ),
    max_leaves=8,
)


@pytest.mark.parametrize("examples", [25, pytest.param(300, marks=pytest.mark.slow)])
def test_any_schema_is_followed_or_refused_in_one_line(examples: int):
    settings(max_examples=examples, deadline=None)(given(schemas, st.integers(0, 9))(follow))()


def follow(schema: dict[str, object], seed: int) -> None:
    try:
        constraint = JsonConstraint(BYTES, schema)
    except UserError as error:
        told = str(error)
    else:
        told = ""
    assert "\n" not in told
    if told:
        return
    for _ in range(20):
        allowed = constraint.mask().nonzero()[0]
        if not len(allowed) or allowed.tolist() == [BYTES.eos_id]:
            break
        constraint.advance(int(allowed[seed % len(allowed)]))
