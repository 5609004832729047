"""Fuzzed requests: no status 500, whatever the schema allows or forbids (schemathesis)."""

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings

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
