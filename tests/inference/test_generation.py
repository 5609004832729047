from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from danalab.errors import UserError
from danalab.inference import generate, sample
from danalab.models import Decoder, ModelConfig, build_model


@pytest.fixture
def model(tiny: ModelConfig) -> Decoder:
    return build_model(tiny, seed=4)


def _sampled(logits: list[float], count: int = 400, **settings: Any) -> set[int]:
    generator = torch.Generator().manual_seed(0)
    return {sample(torch.tensor(logits), generator, **settings) for _ in range(count)}


def test_sampling_draws_from_the_full_forward_distribution(model: Decoder):
    probabilities = (model(torch.tensor([[7, 8]]))[0, -1].double() / 0.7).softmax(-1)
    drawn = torch.zeros(61, dtype=torch.float64)
    for seed in range(800):
        drawn[next(generate(model, [7, 8], max_tokens=1, temperature=0.7, seed=seed))] += 1 / 800
    assert (drawn - probabilities).abs().sum().item() / 2 < 0.15


def test_a_seed_repeats_the_text_and_another_seed_does_not(model: Decoder):
    one, same, other = (list(generate(model, [1], max_tokens=20, seed=seed)) for seed in (1, 1, 2))
    assert one == same != other


def test_padding_ids_are_never_chosen(model: Decoder):
    with torch.no_grad():
        model.head_weight[40:] = 10 * model.head_weight[40:]  # they would be the favourites
    texts = [list(generate(model, [5], max_tokens=20, temperature=t, seed=0, n_valid=40)) for t in (0, 1.5)]
    assert max(max(text) for text in texts) < 40


def test_a_stop_id_ends_the_text_and_is_not_yielded(model: Decoder):
    text = list(generate(model, [1, 2], max_tokens=12, temperature=0))
    stop = text[-1]
    assert list(generate(model, [1, 2], max_tokens=12, temperature=0, stop_ids={stop})) == text[: text.index(stop)]


def test_prompt_and_text_may_fill_the_context_exactly(model: Decoder):
    assert len(list(generate(model, [1] * 20, max_tokens=4))) == 4
    assert list(generate(model, [1] * 24, max_tokens=0)) == []


def test_a_sliding_window_continues_beyond_the_context_from_its_second_half(model: Decoder):
    text = [1, 2, 3, *generate(model, [1, 2, 3], max_tokens=40, temperature=0, sliding_window=True)]
    assert len(text) == 43
    start = 0  # of the window that the model sees
    for position in range(3, 43):
        if position - start > 24:
            start = position - 12
        logits = model(torch.tensor([text[start:position]]))[0, -1]
        assert text[position] == int(logits.argmax())
    long = [7] * 50
    assert len(list(generate(model, long, max_tokens=3, sliding_window=True))) == 3


def test_gradients_stay_on_for_the_caller_between_tokens(model: Decoder):
    for _ in generate(model, [1], max_tokens=2):
        assert torch.is_grad_enabled()


def test_top_k_and_top_p_keep_the_most_likely():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().tolist()
    assert _sampled(logits) == {0, 1, 2, 3}
    assert _sampled(logits, top_k=2) == {0, 1}
    assert _sampled(logits, top_p=0.5) == {0}
    assert _sampled(logits, top_p=0.51) == {0, 1}
    assert _sampled(logits, top_p=0.9) == {0, 1, 2}
    assert _sampled(logits, top_k=3, top_p=0.6) == {0, 1}
    assert _sampled(logits, top_k=99) == {0, 1, 2, 3}
    assert _sampled(logits, top_p=1e-9) == {0}


def test_a_tiny_temperature_is_greedy_and_does_not_overflow():
    assert _sampled([1.0, 3.0, 2.0], temperature=1e-30) == {1}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_model_that_has_diverged_says_so(wrong: float, temperature: float):
    with pytest.raises(UserError, match="has diverged"):
        _sampled([1.0, wrong, 2.0], temperature=temperature)


@pytest.mark.parametrize(
    ("prompt", "settings", "message"),
    [
        ([1] * 20, {"max_tokens": 5}, "a prompt of 20 tokens and max_tokens 5 are 25 together.*seq_len 24"),
        ([], {"max_tokens": 5}, "the prompt is empty"),
        ([1, 61], {"max_tokens": 5}, "prompt token id 61 is outside the model's vocabulary of 61"),
        ([1], {"max_tokens": -1}, "max_tokens must not be negative"),
        ([1], {"max_tokens": 1, "temperature": -0.1}, "temperature >= 0"),
        ([1], {"max_tokens": 1, "temperature": float("nan")}, "temperature >= 0"),
        ([1], {"max_tokens": 1, "temperature": float("inf")}, "finite temperature >= 0"),
        ([1], {"max_tokens": 1, "top_k": -1}, "top_k >= 0"),
        ([1], {"max_tokens": 1, "top_p": 0.0}, "0 < top_p <= 1"),
        ([1], {"max_tokens": 1, "n_valid": 62}, "n_valid <= vocab_size"),
    ],
)
def test_bad_settings_are_refused_at_the_call(
    model: Decoder, prompt: list[int], settings: dict[str, Any], message: str
):
    with pytest.raises(UserError, match=message):
        generate(model, prompt, **settings)


def test_generation_imports_neither_sharded_tensors_nor_the_compiler():
    code = (
        "import sys; from danalab.inference import generate; from danalab.models import ModelConfig, build_model\n"
        "config = ModelConfig('qwen3next', 16, 2, 2, 8, 24, 31, 16, full_attention_interval=2)\n"
        "assert len(list(generate(build_model(config), [1], max_tokens=3))) == 3\n"
        "print([name for name in ('torch.distributed.tensor', 'sympy', 'torch._dynamo') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
