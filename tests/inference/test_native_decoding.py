"""The native back end against a float64 model, and when it is chosen."""

from __future__ import annotations

import logging
import math

import pytest
import torch
from torch import Tensor

from danalab.errors import UserError
from danalab.inference import Engine, Request, SamplingParameters, engine, native_decoding
from danalab.inference.native_decoding import NativeSampler
from danalab.inference.native_decoding.layout import quantise
from danalab.inference.request import RequestState
from danalab.inference.sampling import draw
from danalab.models import ModelConfig, build_model
from danalab.models.decoder import Decoder
from models.architectures import VARIANTS, VOCAB, tiny
from targets import TARGETS, compiled_for


def logits_of(model: Decoder, prompts: list[list[int]], weight_dtype: str | None = None) -> Tensor:
    """After each prompt, [N, V]."""
    engine = Engine(model, backend="native", weight_dtype=weight_dtype)
    for prompt in prompts:
        engine.submit(Request(prompt, SamplingParameters(max_tokens=2, temperature=0)))
    logits, sequences = engine._backend.run(engine.scheduler.plan())
    assert [sequence.id for sequence in sequences] == list(range(len(prompts)))
    return logits.clone()


def exact(model: Decoder, prompts: list[list[int]]) -> Tensor:
    config = model.config
    wide = build_model(config, device="cpu", dtype=torch.float64)
    wide.load_state_dict(model.state_dict())
    with torch.no_grad():
        return torch.stack([wide(torch.tensor([prompt]))[0, -1] for prompt in prompts])


PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8], [7], [2, 7, 1, 8, 2, 8]]


@pytest.mark.sample(8)
@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_logits_are_those_of_the_model_in_float64(config: ModelConfig):
    model = build_model(config, seed=4)
    torch.testing.assert_close(logits_of(model, PROMPTS).double(), exact(model, PROMPTS), rtol=0, atol=5e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"arch": "qwen3", "d_model": 96, "head_dim": 48, "mlp_dim": 136, "n_kv_heads": 1, "vocab_size": 77},
        {"arch": "qwen3", "head_dim": 160, "rotary_dim": 6, "residual_scale": 0.7},
        {
            "arch": "resonance",
            "d_model": 36,
            "n_heads": 2,
            "head_dim": 18,
            "num_frequencies": 6,
        },
        {"arch": "resonance", "mixer": "none"},
        {"arch": "resonance", "learned_positions": True},
        {
            "arch": "qwen3next",
            "full_attention_interval": 2,
            "linear_value_dim": 5,
            "linear_key_dim": 7,
            "conv_size": 2,
        },
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_odd_sizes_and_settings_are_computed(changes: dict[str, object]):
    model = build_model(tiny(**changes), seed=5)  # pyright: ignore[reportArgumentType]
    torch.testing.assert_close(logits_of(model, PROMPTS).double(), exact(model, PROMPTS), rtol=0, atol=5e-5)


@pytest.mark.parametrize(("weight_dtype", "error"), [("float32", 1e-5), ("bfloat16", 0.02), ("int8", 0.03)])
def test_smaller_weights_have_the_error_that_the_docs_state(weight_dtype: str, error: float):
    model = build_model(tiny("qwen3", d_model=128, head_dim=32, mlp_dim=256, n_layers=4), seed=4)
    found, want = logits_of(model, PROMPTS, weight_dtype).double(), exact(model, PROMPTS)
    relative = (found - want).norm() / want.norm()
    assert relative < error
    if weight_dtype != "float32":
        assert relative > 1e-4  # smaller weights were used


def test_bfloat16_weights_are_exactly_those_of_the_model_rounded():
    model = build_model(tiny("llama"), seed=4)
    rounded = build_model(tiny("llama"), seed=4)
    with torch.no_grad():
        for name, parameter in rounded.named_parameters():
            if parameter.ndim == 2 and "embedding" not in name:
                parameter.copy_(parameter.bfloat16())
    assert torch.equal(logits_of(model, PROMPTS, "bfloat16"), logits_of(rounded, PROMPTS, "float32"))


def test_int8_keeps_each_weight_within_half_a_step():
    weight = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    weight[3] = 0
    integers, scale = quantise(weight)
    assert integers.dtype == torch.int8
    assert ((integers * scale.unsqueeze(1) - weight).abs() <= 0.5001 * scale.unsqueeze(1)).all()


def test_a_bfloat16_model_keeps_its_weights_in_bfloat16():
    engine = Engine(build_model(tiny("enoki"), dtype=torch.bfloat16))
    assert isinstance(engine._backend, native_decoding.NativeBackend)
    assert engine.generate([Request([1, 2], SamplingParameters(max_tokens=3))])[0].finish_reason == "length"


def test_a_model_that_it_cannot_compute_falls_back_to_its_own_layers_and_says_so(
    caplog: pytest.LogCaptureFixture,
):
    model = build_model(tiny("enoki"), dtype=torch.float64)
    with caplog.at_level(logging.INFO, "danalab.inference"):
        assert not isinstance(Engine(model)._backend, native_decoding.NativeBackend)
    assert "float32 or bfloat16 weights: got float64" in caplog.text
    with pytest.raises(UserError, match="the native back end needs float32 or bfloat16 weights"):
        Engine(model, backend="native")
    with pytest.raises(UserError, match="the native back end needs"):
        Engine(model, weight_dtype="int8")
    with pytest.raises(UserError, match="the eager back end computes with the model's own weights"):
        Engine(model, backend="eager", weight_dtype="int8")


def test_without_a_compiler_the_models_own_layers_decode(monkeypatch: pytest.MonkeyPatch):
    def missing() -> None:
        raise UserError("no C++ compiler")

    monkeypatch.setattr(native_decoding, "library", missing)
    assert isinstance(Engine(build_model(tiny("enoki")))._backend, engine.EagerBackend)


@pytest.mark.parametrize("size", [1, 15, 16, 33, 500])
@pytest.mark.parametrize("temperature", [0.0, 1e-320, 0.5, 1.0, 3.0])
def test_its_sampler_draws_what_torch_draws(size: int, temperature: float):
    logits = 3 * torch.randn(50, size, generator=torch.Generator().manual_seed(size))
    settings = [SamplingParameters(temperature=temperature, seed=seed) for seed in range(50)]
    sequences = [RequestState(0, Request([0], each), 1, frozenset()) for each in settings]
    found, want = draw(logits.clone(), sequences, NativeSampler(50)), draw(logits.clone(), sequences)
    assert found.tokens == want.tokens
    torch.testing.assert_close(
        torch.tensor(found.logprobs), torch.tensor(want.logprobs), rtol=1e-5, atol=2e-6
    )


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_its_sampler_fails_rows_that_are_not_finite(wrong: float):
    logits = torch.zeros(4, 20)
    logits[1, 3] = logits[2, 18] = wrong
    sequences = [RequestState(0, Request([0]), 1, frozenset())] * 4
    tokens, logprobs, _ = NativeSampler(4)(logits, sequences)
    assert [token == -1 for token in tokens] == [False, True, True, False]
    assert [math.isnan(value) for value in logprobs] == [False, True, True, False]


def test_rows_of_both_kinds_keep_their_order():
    logits = torch.randn(6, 30, generator=torch.Generator().manual_seed(0))
    settings = [{}, {"top_k": 3}, {"temperature": 0.0}, {"logprobs": 2}, {}, {"logit_bias": {3: 50.0}}]
    sequences = [
        RequestState(0, Request([0], SamplingParameters(**{"seed": 1, **each})), 1, frozenset())
        for each in settings
    ]
    found, want = draw(logits.clone(), sequences, NativeSampler(6)), draw(logits.clone(), sequences)
    assert found.tokens == want.tokens
    assert found.tokens[5] == 3
    assert [len(each) for each in found.tops] == [0, 0, 0, 2, 0, 0]


def test_the_vocabulary_may_have_any_size():
    model = build_model(tiny("enoki", vocab_size=33), seed=4)
    assert logits_of(model, [[1, 2]]).shape == (1, 33)
    assert VOCAB != 33


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["enoki", "qwen3next", "resonance"])
@pytest.mark.parametrize("target", TARGETS)
def test_vectors_of_other_processors_give_the_same_function(target: str, arch: str):
    model = build_model(tiny(arch), seed=4)
    with compiled_for(target):
        for dtype, error in (("float32", 5e-5), ("bfloat16", 0.1), ("int8", 0.1)):
            found = logits_of(model, PROMPTS, dtype)
            torch.testing.assert_close(found.double(), exact(model, PROMPTS), rtol=0, atol=error)
            alone = torch.cat([logits_of(model, [prompt], dtype) for prompt in PROMPTS])
            assert torch.equal(alone, found)
