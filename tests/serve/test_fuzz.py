"""Fuzzed requests: no status 500, whatever the schema allows or forbids (schemathesis)."""

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from danalab.chat.conversations import field_error
from danalab.serve import Planner
from danalab.serve.completions import ChatCompletionRequest, CompletionRequest
from danalab.serve.fields import RequestError
from danalab_annexes.serve.responses import ResponseRequest
from servers import running_server, tiny_model

POSTS = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/tokenize", "/detokenize"]


@pytest.fixture(scope="module")
def schema():
    with running_server(tiny_model(128), max_choices=2, max_waiting=64) as server:
        yield schemathesis.openapi.from_url(f"{server.url}/openapi.json")


def fuzz(operation, examples: int) -> None:
    """Send generated requests, half of which break the schema."""
    modes = [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE]
    for mode in modes:

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(max_examples=examples // 2, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        def check(case) -> None:
            response = case.call(timeout=60)
            assert response.status_code < 500, (case.body, response.text)
            if response.status_code >= 400:
                assert response.json()["error"]["message"], case.body

        check()


@pytest.mark.parametrize("path", POSTS[:1])
def test_no_request_is_a_fault_of_the_server(schema, path):
    fuzz(schema[path]["POST"], 10)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("path", POSTS)
def test_many_requests_are_no_fault_of_the_server(schema, path):
    fuzz(schema[path]["POST"], 1000)


MODEL = tiny_model(256)
words = st.sampled_from(
    ["", "a", "user", "assistant", "system", "tool", "function", "text", "\ud800", "<|user_start|>"]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | words,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words | st.just("type"), inner, max_size=2),
    max_leaves=5,
)
texts = words | st.lists(st.fixed_dictionaries({"type": st.sampled_from(["text", "output_text", "python", "image"]),
                                                "text": words}), max_size=2) | values  # fmt: skip
calls = st.lists(st.fixed_dictionaries(
    {"function": st.fixed_dictionaries({"name": words, "arguments": st.sampled_from(["{}", "{"]) | values})},
    optional={"id": words, "type": words},
), max_size=2)  # fmt: skip
messages = st.lists(
    st.fixed_dictionaries(
        {"role": words, "content": texts},
        optional={"tool_calls": calls | values, "tool_call_id": words, "weight": values, "name": values, "type": words,
                  "calculations": values, "refusal": words | values, "function_call": values},
    ) | values,
    max_size=4,
)  # fmt: skip
more = st.dictionaries(
    st.sampled_from(
        ["top_k", "stop", "n", "logit_bias", "tools", "tool_choice", "response_format", "echo", "seed", "xs"]
    ),
    values,
    max_size=2,
)


@settings(max_examples=170, deadline=None)
@given(said=messages, more=more)
def test_any_request_is_planned_or_refused_with_the_field_at_fault(said, more):
    bodies = {
        ChatCompletionRequest: {"messages": said, **more},
        ResponseRequest: {"input": said, **more},
        CompletionRequest: {"prompt": said, **more},
    }
    for kind, body in bodies.items():
        try:
            kind.model_validate(body).plan(Planner(MODEL, max_choices=2), scope="")
        except (ValidationError, RequestError) as error:
            if isinstance(error, ValidationError):
                error = RequestError.of(field_error(error.errors(), body, list(kind.model_fields)))
            told = error
        else:
            continue
        assert told.status in (400, 413)
        assert "\n" not in str(told)
