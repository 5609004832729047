"""Tokens to text, one by one: whole characters, stop strings across tokens."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danalab.data.tokenizers import load_tokenizer
from danalab.inference import Engine, Request, SamplingParameters, TextGenerator, TextStream
from danalab.models import ModelConfig, build_model

BYTES = load_tokenizer("bytes")


def pieces(text: str, stop: list[str]) -> list[str]:
    stream = TextStream(BYTES, stop)
    return [*(stream.feed(token) for token in BYTES.encode(text)), stream.finish()]


def test_a_character_of_several_tokens_comes_when_it_is_complete():
    assert pieces("a€b", []) == ["a", "", "", "€", "b", ""]
    stream = TextStream(BYTES)
    assert [stream.feed(token) for token in BYTES.encode("€")[:2]] == ["", ""]
    assert stream.finish() == "\ufffd"


def test_the_beginning_of_a_stop_string_is_held_until_it_is_clear():
    assert pieces("a</b>c", ["</s>"]) == ["a", "", "", "</b", ">", "c", ""]
    assert pieces("a</s>c", ["</s>"]) == ["a", "", "", "", "", "", ""]
    assert pieces("a</", ["</s>"]) == ["a", "", "", "</"]


@given(st.text("abc", max_size=12), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))
def test_text_ends_before_the_first_stop_string(text: str, stop: list[str]):
    # The first string that is complete counts, and of several that are complete at once the one that began first.
    end, first = len(text), len(text)
    for length in range(len(text) + 1):
        places = [at for each in stop if (at := text[:length].find(each)) >= 0]
        if places:
            end, first = length, min(places)
            break
    stream = TextStream(BYTES, stop)
    found = "".join(map(stream.feed, BYTES.encode(text))) + stream.finish()
    assert found == text[:first]
    assert stream.stopped == (
        first < len(text) or end < len(text) or any(text.endswith(each) for each in stop)
    )


def test_end_tokens_have_no_text():
    stream = TextStream(BYTES, end_tokens={BYTES.eos_id})
    assert stream.feed(BYTES.eos_id) == ""
    assert TextStream(BYTES).feed(BYTES.eos_id) == "<|endoftext|>"


@pytest.fixture(scope="module")
def generator() -> TextGenerator:
    config = ModelConfig("enoki", 32, 2, 2, 16, 64, BYTES.vocab_size, 128)
    return TextGenerator(build_model(config, seed=1), BYTES)


def test_a_stream_is_the_completion_in_pieces(generator: TextGenerator):
    text = "".join(generator.stream("abc", seed=1, max_tokens=30))
    assert generator.complete("abc", [SamplingParameters(seed=1, max_tokens=30)]) == [(text, 30)]


def test_a_stop_string_ends_the_text_and_the_request(generator: TextGenerator):
    whole = "".join(generator.stream("abc", seed=1, max_tokens=30))
    stop = whole[6:8]
    ((cut, tokens),) = generator.complete("abc", [SamplingParameters(seed=1, max_tokens=30, stop=[stop])])
    assert cut == whole[: whole.index(stop)]
    assert tokens < 30
    assert "".join(generator.stream("abc", seed=1, max_tokens=30, stop=[stop])) == cut


def test_a_stream_that_is_closed_frees_its_place(generator: TextGenerator):
    stream = generator.stream("abc", seed=1, max_tokens=30)
    next(iter(stream))
    stream.close()
    assert not generator.engine.busy


def test_padding_ids_are_never_drawn():
    model = build_model(ModelConfig("enoki", 32, 1, 2, 16, 64, BYTES.vocab_size, 32), seed=1)
    model.head_weight.data[BYTES.n_tokens :] *= 30  # they would be the favourites
    for temperature in (0.0, 1.5):
        parameters = SamplingParameters(max_tokens=20, temperature=temperature, seed=0)
        completion = Engine(model, BYTES).generate([Request([5], parameters)])[0]
        assert max(completion.tokens) < BYTES.n_tokens


@pytest.mark.slow
def test_decoding_imports_neither_sharded_tensors_nor_the_compiler():
    code = (
        "import sys; from danalab.inference import Engine, Request, SamplingParameters\n"
        "from danalab.models import ModelConfig, build_model\n"
        "config = ModelConfig('qwen3next', 16, 2, 2, 8, 24, 31, 16, full_attention_interval=2)\n"
        "engine = Engine(build_model(config))\n"
        "assert len(engine.generate([Request([1], SamplingParameters(max_tokens=3))])[0].tokens) == 3\n"
        "print([name for name in ('torch.distributed.tensor', 'sympy', 'torch._dynamo') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
