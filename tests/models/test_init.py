from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import torch

from danalab.errors import UserError
from danalab.models import ModelConfig, build_model, canonical_arrays


@pytest.mark.parametrize("scheme", ["ScaledGPT", "KarpathyGPT2", "Standard"])
@pytest.mark.parametrize("arch", ["enoki", "qwen3"])
def test_standard_deviations_are_golden(golden: Path, arch: str, scheme: str):
    measured = json.loads((golden / "init_statistics.json").read_text())["measured"][f"{arch}/{scheme}"]
    sizes = measured["config"]
    config = ModelConfig(
        arch=arch,
        d_model=sizes["n_embd"],
        n_layers=sizes["n_layer"],
        n_heads=sizes["n_head"],
        head_dim=sizes["qkv_dim"],
        mlp_dim=sizes["mlp_hidden_dim"],
        vocab_size=sizes["vocab_size"],
        seq_len=sizes["sequence_length"],
    )
    gathered: dict[str, list[torch.Tensor]] = {}
    for name, weight in canonical_arrays(build_model(config, init=scheme)).items():
        kind = re.sub(r"layers\.\d+", "layers.*", name)
        if "layers.*.attention.qkv.weight" in measured["kinds"]:
            kind = re.sub(r"attention\.[qkv]\.", "attention.qkv.", kind)
        gathered.setdefault(kind, []).append(weight.flatten())
    assert set(gathered) == set(measured["kinds"])
    for kind, parts in gathered.items():
        values, std = torch.cat(parts).double(), measured["kinds"][kind]["theoretical_std"]
        if std == 0:
            assert torch.equal(values, torch.ones_like(values)), kind
            continue
        n = values.numel()
        assert float(values.std()) == pytest.approx(std, rel=5 / math.sqrt(2 * n)), kind
        assert abs(float(values.mean())) < 5 * std / math.sqrt(n), kind
        assert float((values / std).pow(4).mean()) == pytest.approx(3, abs=5 * math.sqrt(96 / n)), kind


@pytest.mark.parametrize(
    "spellings",
    [("scaled-gpt", "ScaledGPT", "scaled_gpt"), ("karpathy-gpt2", "KarpathyGPT2"), ("standard", "Standard")],
)
def test_both_spellings_name_the_same_scheme(tiny: ModelConfig, spellings: tuple[str, ...]):
    first, *others = (build_model(tiny, init=name).state_dict() for name in spellings)
    for other in others:
        torch.testing.assert_close(first, other, rtol=0, atol=0)


def test_unknown_scheme_is_refused_with_the_nearest_name(tiny: ModelConfig):
    with pytest.raises(UserError, match="did you mean 'karpathy-gpt2'"):
        build_model(tiny, init="karpathy-gpt3")


def test_a_seed_decides_all_weights(tiny: ModelConfig):
    one, same, other = (build_model(tiny, seed=seed).state_dict() for seed in (1, 1, 2))
    torch.testing.assert_close(one, same, rtol=0, atol=0)
    assert not torch.equal(one["output_head.weight"], other["output_head.weight"])


def test_building_does_not_touch_the_global_generator(tiny: ModelConfig):
    before = torch.get_rng_state()
    build_model(tiny)
    assert torch.equal(before, torch.get_rng_state())


def test_weights_are_the_same_numbers_in_every_dtype(tiny: ModelConfig):
    single, half = build_model(tiny), build_model(tiny, dtype=torch.bfloat16)
    torch.testing.assert_close(single.bfloat16().state_dict(), half.state_dict(), rtol=0, atol=0)


def test_meta_model_given_memory_later_equals_the_model_built_at_once(tiny: ModelConfig):
    late = build_model(tiny, device="meta")
    assert all(tensor.is_meta for tensor in [*late.parameters(), *late.buffers()])
    late.to_empty(device="cpu")
    late.init_weights(torch.Generator().manual_seed(5))
    at_once = build_model(tiny, seed=5)
    torch.testing.assert_close(late.state_dict(), at_once.state_dict(), rtol=0, atol=0)
    tokens = torch.arange(8)[None]
    assert torch.equal(late(tokens), at_once(tokens))
