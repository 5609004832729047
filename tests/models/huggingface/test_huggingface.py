"""Our models and those of the real transformers library compute the same function, out and back."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from danalab.errors import UserError
from danalab.models import ModelConfig, build_model
from danalab.models.decoder import Decoder
from danalab.models.huggingface.common import to_halves, to_pairs
from danalab.models.huggingface.convert import from_huggingface, require_class, to_huggingface
from models.weights import random_model

transformers = pytest.importorskip("transformers")

SIZES = (32, 2, 4, 8, 48, 61, 24)
CASES = {
    "gpt": ModelConfig("gpt", *SIZES),
    "gpt-untied": ModelConfig("gpt", *SIZES, norm_eps=1e-3, tied_head=False),
    "llama": ModelConfig("llama", *SIZES),
    "llama-grouped-tied": ModelConfig(
        "llama", *SIZES, n_kv_heads=2, tied_head=True, rope_theta=5e5, norm_eps=1e-3
    ),
    "qwen3": ModelConfig("qwen3", *SIZES, attention_gate=False),
    "qwen3-grouped": ModelConfig("qwen3", *SIZES, attention_gate=False, n_kv_heads=1, rope_theta=1e6),
    "qwen3-wide-heads": ModelConfig("qwen3", 32, 2, 4, 16, 48, 61, 24, attention_gate=False, n_kv_heads=2),
    "llama-narrow-heads": ModelConfig("llama", 32, 2, 2, 8, 48, 61, 24),
}
TOKENS = torch.randint(0, 61, (2, 24), generator=torch.Generator().manual_seed(0))


def theirs(config: dict[str, Any]):
    kinds = {"gpt2": "GPT2", "llama": "Llama", "qwen3": "Qwen3"}
    settings = getattr(transformers, f"{kinds[config['model_type']]}Config")(**config)
    return getattr(transformers, config["architectures"][0])(settings).eval()


@pytest.mark.parametrize("config", CASES.values(), ids=CASES)
def test_logits_are_those_of_transformers(config: ModelConfig):
    ours = random_model(config)
    described, weights = to_huggingface(config, ours.state_dict())
    model = theirs(described)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected
    assert set(missing) <= ({"lm_head.weight"} if config.choice("tied_head") else set())
    model.tie_weights()
    with torch.no_grad():
        torch.testing.assert_close(ours(TOKENS), model(TOKENS).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("config", CASES.values(), ids=CASES)
def test_there_and_back_changes_no_bit(config: ModelConfig):
    weights = random_model(config).state_dict()
    again, found = from_huggingface(*to_huggingface(config, weights))
    assert build_model(again, device="meta").state_dict().keys() == found.keys()
    torch.testing.assert_close(found, dict(weights), rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen3", "qwen3-wide-heads"])
def test_a_random_model_of_transformers_is_ours_too(kind: str):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
             "head_dim": 8, "num_key_value_heads": 2, "max_position_embeddings": 24}  # fmt: skip
    if (
        kind == "qwen3-wide-heads"
    ):  # as in Qwen3 0.6B, 4B and 8B, heads are together wider than the residual stream
        kind, sizes = "qwen3", {**sizes, "head_dim": 16}
    if kind == "gpt2":
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 24}
    model = theirs({"model_type": kind, "vocab_size": 61, **sizes, "architectures": [
        {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}[kind]]})  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    config, weights = from_huggingface(model.config.to_dict(), model.state_dict())
    ours = build_model(config)
    ours.load_state_dict(weights)
    with torch.no_grad():
        torch.testing.assert_close(ours(TOKENS), model(TOKENS).logits, rtol=1e-5, atol=1e-5)


OURS = {
    "enoki": ModelConfig("enoki", *SIZES),
    "gated-grouped": ModelConfig("qwen3", *SIZES, n_kv_heads=2, norm="layernorm", rope_theta=5e5),
    "gated-wide-heads": ModelConfig("qwen3", 32, 2, 4, 16, 48, 61, 24, n_kv_heads=2),
    "three-heads": ModelConfig("llama", 32, 2, 3, 8, 48, 61, 24),
    "tied-qk-norm": ModelConfig(
        "llama", *SIZES, qk_norm=True, tied_head=True, residual_scale=0.5, norm_eps=1e-3
    ),
}


def of_our_class(model_class: Any, config_class: Any, ours: Decoder) -> Any:
    """The model in a class of ours that travels with exported weights; what is exported can be imported again."""
    described, weights = to_huggingface(ours.config, ours.state_dict())
    assert from_huggingface(described, weights)[0] == ours.config
    model = model_class(config_class(**described)).eval()
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected
    assert set(missing) <= ({"output_head.weight"} if ours.config.choice("tied_head") else set())
    model.tie_weights()
    return model


def behind_padding(model: Any) -> torch.Tensor:
    """Logits of the first 9 tokens, with three of padding before them."""
    padded = torch.cat((torch.zeros(2, 3, dtype=torch.int64), TOKENS[:, :9]), dim=1)
    mask = (torch.arange(12) >= 3).int().expand(2, 12)
    return model(padded, attention_mask=mask).logits[:, 3:]


@pytest.mark.parametrize("config", OURS.values(), ids=OURS)
def test_our_class_for_transformers_computes_what_the_model_does(config: ModelConfig):
    from danalab.models.huggingface import modeling_danalab

    ours = random_model(config)
    model = of_our_class(modeling_danalab.DanalabForCausalLM, modeling_danalab.DanalabConfig, ours)
    with torch.no_grad():
        logits = ours(TOKENS)
        torch.testing.assert_close(model(TOKENS, labels=TOKENS).logits, logits, rtol=1e-5, atol=1e-5)
        first = model(TOKENS[:, :20], use_cache=True)
        rest = model(TOKENS[:, 20:], past_key_values=first.past_key_values).logits
        torch.testing.assert_close(rest, logits[:, 20:], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(behind_padding(model), logits[:, :9], rtol=1e-5, atol=1e-5)


def test_files_of_a_bare_model_with_its_tables_are_read():
    config = CASES["gpt"]
    described, weights = to_huggingface(config, random_model(config).state_dict())
    bare = {name.removeprefix("transformer."): tensor for name, tensor in weights.items()}
    bare["h.0.attn.bias"] = torch.ones(1, 1, 24, 24)
    assert from_huggingface(described, bare)[1].keys() == from_huggingface(described, weights)[1].keys()


def test_halves_and_pairs_are_inverse_and_move_whole_heads():
    rows = torch.arange(16.0)
    assert to_halves(rows, 8).tolist() == [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15]
    assert torch.equal(to_pairs(to_halves(rows, 8), 8), rows)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ModelConfig("gpt", *SIZES, n_kv_heads=2), "GPT2LMHeadModel has n_kv_heads = 4 only: a gpt with 2"),
        (ModelConfig("gpt", *SIZES, attention_gate=True), "attention_gate = False only"),
        (ModelConfig("gpt", *SIZES, residual_scale=0.5), "residual_scale = 1.0 only"),
        (ModelConfig("gpt", 32, 2, 4, 16, 48, 61, 24), "n_heads x head_dim = 32 only: a gpt with 64"),
        (
            ModelConfig("enoki", *SIZES, norm="rmsnorm-1p"),
            "no class for enoki like this; what can be exported: enoki, gpt",
        ),
        (
            ModelConfig("moe", *SIZES),
            "no class for moe like this",
        ),
    ],
)
def test_what_transformers_cannot_compute_is_refused(config: ModelConfig, message: str):
    with pytest.raises(UserError, match=message):
        require_class(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model_type": "mistral"},
            "model_type 'mistral' cannot be imported; what can: .*qwen3_next.*, danalab",
        ),
        ({"attention_bias": True}, "attention_bias = True"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "rope_type = 'llama3'"),
        ({"num_hidden_layers": 1}, "the model needs none"),
        ({"num_hidden_layers": 3}, "weight 'model.layers.2.input_layernorm.weight' has shape none"),
        ({"num_attention_heads": 0, "head_dim": None}, "config.json of a llama model cannot be used"),
        ({"num_key_value_heads": 3}, "n-kv-heads 3 does not divide"),
        ({"model_type": ["llama"]}, "cannot be imported"),
        ({"rope_parameters": "x"}, "config.json of a llama model cannot be used"),
        ({"rope_parameters": {"rope_theta": "x"}}, "config.json of a llama model cannot be used"),
        (
            {"vocab_size": 60},
            r"'model.embed_tokens.weight' has shape \[61, 32\], the model needs \[60, 32\]",
        ),
    ],
)
def test_files_that_do_not_fit_are_refused_by_name(changes: dict[str, Any], message: str):
    described, weights = to_huggingface(CASES["llama"], random_model(CASES["llama"]).state_dict())
    with pytest.raises(UserError, match=message):
        from_huggingface({**described, **changes}, weights)


def test_quantised_weights_are_refused():
    described, weights = to_huggingface(CASES["llama"], random_model(CASES["llama"]).state_dict())
    weights["model.norm.weight"] = weights["model.norm.weight"].to(torch.int8)
    with pytest.raises(UserError, match=r"'model\.norm\.weight' is of int8: quantised"):
        from_huggingface(described, weights)


def test_a_missing_setting_is_named():
    described, weights = to_huggingface(CASES["llama"], random_model(CASES["llama"]).state_dict())
    del described["hidden_size"]
    with pytest.raises(UserError, match=r"config\.json of a llama model has no 'hidden_size'"):
        from_huggingface(described, weights)
