"""Models with experts and those of the real transformers library compute the same function, out and back."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from danalab.errors import UserError
from danalab.models import ModelConfig
from danalab.models.huggingface import modeling_danalab
from danalab.models.huggingface.convert import from_huggingface, require_class, to_huggingface
from models.weights import random_model

transformers = pytest.importorskip("transformers")

SIZES = (32, 2, 4, 8, 48, 61, 24)
OURS = {
    "llama": ModelConfig("llama", *SIZES, n_experts=4, n_kv_heads=2, expert_dim=20),
    "moe": ModelConfig("moe", *SIZES),
    "llama-shared": ModelConfig("llama", *SIZES, n_experts=4, n_shared_experts=2, expert_dim=12),
    "qwen3-gated": ModelConfig(
        "qwen3",
        *SIZES,
        n_experts=4,
        n_shared_experts=1,
        shared_expert_gate=True,
        renormalise=False,
        mlp_only_layers=(1,),
    ),
}
TOKENS = torch.randint(0, 61, (2, 24), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("config", OURS.values(), ids=OURS)
def test_there_and_back_changes_no_bit(config: ModelConfig):
    weights = random_model(config, 0.2).state_dict()
    again, found = from_huggingface(*to_huggingface(config, weights))
    assert again.sparsity == config.sparsity
    assert again.renormalise == config.renormalise
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in weights.items())


@pytest.mark.parametrize("config", OURS.values(), ids=OURS)
def test_our_class_for_transformers_computes_what_the_model_does(config: ModelConfig):
    ours = random_model(config, 0.2)
    described, weights = to_huggingface(config, ours.state_dict())
    model = modeling_danalab.DanalabForCausalLM(modeling_danalab.DanalabConfig(**described)).eval()
    model.load_state_dict(weights)
    with torch.no_grad():
        torch.testing.assert_close(model(TOKENS).logits, ours(TOKENS), rtol=1e-5, atol=1e-5)
        first = model(TOKENS[:, :17], use_cache=True)
        rest = model(TOKENS[:, 17:], past_key_values=first.past_key_values).logits
        torch.testing.assert_close(rest, ours(TOKENS)[:, 17:], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("config", OURS.values(), ids=OURS)
def test_transformers_saves_our_class_and_danalab_reads_what_it_saved(config: ModelConfig, tmp_path):
    described, weights = to_huggingface(config, random_model(config, 0.2).state_dict())
    model = modeling_danalab.DanalabForCausalLM(modeling_danalab.DanalabConfig(**described)).eval()
    model.load_state_dict(weights)
    model.save_pretrained(tmp_path)
    assert model.generation_config.top_k in (
        None,
        50,
    )  # experts of a token are nothing that sampling should know of
    saved = json.loads((tmp_path / "config.json").read_text())
    again, found = from_huggingface(saved, load_file(tmp_path / "model.safetensors"))
    assert again == config
    assert all(torch.equal(found[name], tensor) for name, tensor in weights.items())


def test_what_no_class_computes_is_refused():
    with pytest.raises(UserError, match="GPT2LMHeadModel has experts = False only"):
        require_class(ModelConfig("gpt", *SIZES, n_experts=4))
