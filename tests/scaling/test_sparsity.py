"""Experts are counted as they are built and as torch counts them; the size law takes those that are active."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from danalab.models import ModelConfig, build_model
from danalab.scaling import dimensions, flops_per_token, parameter_count

SIZES = (64, 4, 4, 16, 96, 128, 32)
WAYS: list[dict[str, Any]] = [
    {"n_experts": 8},
    {"n_experts": 6, "top_k": 3, "expert_dim": 40, "decoder_sparse_step": 2},
    {
        "n_experts": 4,
        "top_k": 1,
        "n_shared_experts": 2,
        "shared_expert_gate": True,
        "mlp_only_layers": (0, 3),
    },
]


@pytest.mark.sample(2)
@pytest.mark.parametrize("ways", WAYS, ids=str)
@pytest.mark.parametrize("arch", ["moe", "enoki", "qwen3", "llama", "gpt"])
def test_counts_by_formula_are_those_of_the_model_and_of_torch(arch, ways):
    config = ModelConfig(arch, *SIZES, **ways)
    model = build_model(config, device="meta")
    assert model.num_parameters() == parameter_count(config)
    sparse = config.sparsity
    assert sparse is not None
    idle = sum(
        parameter.numel() * (sparse.n_experts - sparse.top_k) // sparse.n_experts
        for name, parameter in model.named_parameters()
        if ".experts." in name
    )
    assert parameter_count(config, active=True) == model.num_parameters() - idle
    tokens = torch.zeros(2, 32, dtype=torch.int64, device="meta")
    with FlopCounterMode(display=False) as counter:
        model(tokens).sum().backward()
    assert counter.get_total_flops() == pytest.approx(2 * 32 * flops_per_token(config, 32), rel=0.01)


def test_sparse_layers_are_those_whose_number_the_step_divides_but_for_exceptions():
    config = ModelConfig("moe", 64, 7, 4, 16, 96, 128, 32, decoder_sparse_step=3)
    assert config.sparsity.layers == (2, 5)
    assert replace(config, mlp_only_layers=(5,)).sparsity.layers == (2,)
    assert replace(config, decoder_sparse_step=1, mlp_only_layers=(0, 6)).sparsity.layers == (1, 2, 3, 4, 5)
    assert ModelConfig("enoki", *SIZES).sparsity is None


def test_a_configuration_with_experts_survives_json():
    config = ModelConfig("moe", *SIZES, mlp_only_layers=(1,), n_experts=4)
    assert ModelConfig.from_dict({**config.as_dict(), "mlp_only_layers": [1]}) == config


def test_the_size_law_takes_what_is_active():
    dense, few = dimensions("enoki", 8), dimensions("moe", 8)
    router = 6 * 512 * 8
    assert few.non_emb_params == dense.non_emb_params + router + 6 * 2 * 512 * 2048
    one = replace(dimensions("qwen3", 4), n_experts=16, top_k=1)
    assert one.non_emb_params == pytest.approx(dimensions("qwen3", 4).non_emb_params, rel=0.01)
    assert replace(one, top_k=4).non_emb_params > 2 * one.non_emb_params
