"""JSON by a schema, from a model that knows nothing about JSON."""

from __future__ import annotations

import json

import jsonschema
import pytest

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
        Request([65], SamplingParameters(max_tokens=120, temperature=1.0, seed=seed), JsonConstraint(BYTES, SCHEMA))
        for seed in range(6)
    ]
    for completion in engine.generate(requests):
        assert completion.finish_reason == "stop"
        assert completion.tokens[-1] == BYTES.eos_id
        jsonschema.validate(json.loads(BYTES.decode(completion.tokens[:-1])), SCHEMA)


def test_requests_with_and_without_a_constraint_are_decoded_together(engine: Engine):
    parameters = SamplingParameters(max_tokens=20, temperature=0)
    free = engine.generate([Request([65], parameters)])[0]
    both = engine.generate([Request([65], parameters), Request([65], parameters, JsonConstraint(BYTES, SCHEMA))])
    assert both[0].tokens == free.tokens
    assert BYTES.decode(both[1].tokens).startswith('{"name":"')


@pytest.mark.parametrize("schema", [{"type": "objec"}, {"type": "object", "properties": 3}, {"$ref": "#/nothing"}])
def test_a_schema_that_cannot_be_used_is_refused(schema: dict[str, object]):
    with pytest.raises(UserError, match="the JSON schema cannot be used"):
        JsonConstraint(BYTES, schema)


def test_whitespace_is_allowed_only_where_asked_for():
    for whitespace in (False, True):
        constraint = JsonConstraint(BYTES, SCHEMA, whitespace=whitespace)
        constraint.advance(ord("{"))
        assert bool(constraint.mask()[ord(" ")]) == whitespace
