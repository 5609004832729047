"""The benchmark of decoding compares what decodes the same tokens, and says what it found."""

import pytest

from danalab.errors import UserError
from danalab.models import ModelConfig
from danalab_bench import generate

pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(generate, "CONFIG", ModelConfig("qwen3", 32, 1, 2, 16, 48, 61, 512, attention_gate=False))


@pytest.mark.slow
def test_every_contender_is_measured_on_batches_and_on_the_trace():
    lines: list[str] = []
    found = generate.measure([1, 2], 3, 4, 2, lines.append)
    assert [row["batch"] for row in found["batches"]] == [1, 2]
    assert found["batches"][0]["tokens_per_second"].keys() >= {"transformers", *generate.ENGINES}
    assert found["memory"]["share_of_bandwidth"] > 0
    assert found["trace"]["times_faster_than"].keys() == {"padded batches", "one after the other"}
    assert found["trace"]["seconds"]["danalab"]["first_token"]["p50"] > 0
    assert len([line for line in lines if line.startswith(("batch", "trace"))]) == 5


def test_contenders_that_decode_different_tokens_are_not_compared(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(generate, "_generate", lambda theirs, prompts, tokens: [[0] * tokens] * len(prompts))
    with pytest.raises(UserError, match="danalab and transformers decode different tokens"):
        generate.measure([1], 3, 0, 1, print)
