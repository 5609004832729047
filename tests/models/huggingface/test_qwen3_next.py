"""qwen3next and the real Qwen3NextForCausalLM compute the same function, out and back, with experts and delta rule.

A head that remembers next to nothing has its output made large by its norm, and the rounding errors with it: for both
alike. A large norm_eps keeps most cases from it.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from danalab.errors import UserError
from danalab.models import ModelConfig, build_model
from danalab.models.huggingface.convert import from_huggingface, require_class, to_huggingface
from models.weights import random_model

transformers = pytest.importorskip("transformers")

TOKENS = torch.randint(0, 61, (2, 70), generator=torch.Generator().manual_seed(0))


def small(n_layers: int = 4, n_heads: int = 4, head_dim: int = 32, **more: Any) -> ModelConfig:
    return ModelConfig(
        "qwen3next", 64, n_layers, n_heads, head_dim, 48, 61, 72, **{"n_experts": 4, "norm_eps": 1e-2, **more}
    )


CASES = {
    "attention": small(2),
    "attention-grouped-tied": small(2, n_kv_heads=2, tied_head=True, rope_theta=5e5, norm_eps=1e-3),
    "hybrid": small(full_attention_interval=4),
    "hybrid-wide": small(head_dim=48, full_attention_interval=2, n_kv_heads=1, rotary_dim=6, renormalise=False),
    "odd-quarters": small(2, n_heads=3, head_dim=36, full_attention_interval=2),
    "own-sizes": small(
        3, full_attention_interval=3, linear_key_heads=2, linear_value_heads=6, linear_key_dim=15, linear_value_dim=17,
        conv_size=3,
    ),
    "hybrid-small-eps": small(full_attention_interval=4, norm_eps=1e-6),
    "some-dense": small(full_attention_interval=2, decoder_sparse_step=2, mlp_only_layers=(3,), top_k=1),
    "two-shared": small(2, full_attention_interval=2, n_shared_experts=2, expert_dim=12),
}  # fmt: skip


def assert_alike(found: torch.Tensor, wanted: torch.Tensor):
    """To 1e-5 of the largest logit."""
    assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()


def theirs(described: dict[str, Any]):
    return transformers.Qwen3NextForCausalLM(transformers.Qwen3NextConfig(**described)).eval()


@pytest.mark.sample(3)
@torch.no_grad()
@pytest.mark.parametrize("config", CASES.values(), ids=CASES)
def test_logits_are_those_of_transformers_from_its_own_files(config: ModelConfig, tmp_path):
    from safetensors.torch import save_file

    ours = random_model(config, 0.1)
    described, weights = to_huggingface(config, ours.state_dict())
    transformers.Qwen3NextConfig(**described).save_pretrained(tmp_path)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    model, report = transformers.Qwen3NextForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert_alike(ours(TOKENS), model.eval()(TOKENS).logits)


@pytest.mark.parametrize("config", CASES.values(), ids=CASES)
def test_there_and_back_changes_no_bit(config: ModelConfig):
    weights = random_model(config, 0.1).state_dict()
    again, found = from_huggingface(*to_huggingface(config, weights))
    assert build_model(again, device="meta").state_dict().keys() == found.keys()
    torch.testing.assert_close(found, dict(weights), rtol=0, atol=0)


@torch.no_grad()
@pytest.mark.parametrize("seed", range(3))
def test_a_random_model_of_transformers_is_ours_too(seed: int):
    torch.manual_seed(seed)
    pick = lambda *of: of[int(torch.randint(len(of), ()))]  # noqa: E731
    model = theirs({
        "vocab_size": 61, "hidden_size": pick(24, 32), "intermediate_size": 40, "num_hidden_layers": pick(2, 4),
        "rms_norm_eps": 1e-2, "num_attention_heads": 4, "num_key_value_heads": pick(1, 2, 4), "head_dim": pick(16, 32),
        "max_position_embeddings": 72, "linear_num_key_heads": 2, "linear_num_value_heads": pick(2, 4),
        "linear_key_head_dim": pick(14, 16), "linear_value_head_dim": pick(12, 16), "num_experts": pick(3, 8),
        "num_experts_per_tok": pick(1, 3), "moe_intermediate_size": 12, "shared_expert_intermediate_size": 12,
        "mlp_only_layers": pick([], [1]), "norm_topk_prob": pick(True, False),
    })  # fmt: skip
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    config, weights = from_huggingface(model.config.to_dict(), model.state_dict())
    ours = build_model(config)
    ours.load_state_dict(weights)
    assert_alike(ours(TOKENS), model(TOKENS).logits)


@torch.no_grad()
def test_both_decode_alike():
    config = CASES["hybrid"]
    ours = random_model(config, 0.1)
    described, weights = to_huggingface(config, ours.state_dict())
    model = theirs(described)
    for layer in range(config.n_layers):  # the class holds stacks, files single experts
        name = f"model.layers.{layer}.mlp.experts."
        one = lambda e, kind, name=name: weights.pop(f"{name}{e}.{kind}.weight")  # noqa: E731
        pairs = [torch.cat((one(e, "gate_proj"), one(e, "up_proj"))) for e in range(4)]
        weights[f"{name}gate_up_proj"] = torch.stack(pairs)
        weights[f"{name}down_proj"] = torch.stack([one(e, "down_proj") for e in range(4)])
    model.load_state_dict(weights)
    cache, seen = ours.new_cache(), None
    for step in TOKENS[:, :20].split((11, *[1] * 9), dim=1):
        seen = model(step, past_key_values=None if seen is None else seen.past_key_values, use_cache=True)
        logits = ours.hidden(step, cache) @ ours.head_weight.T
        assert_alike(logits, seen.logits)


def test_weights_for_predicting_several_tokens_are_left_out():
    config = CASES["attention"]
    described, weights = to_huggingface(config, random_model(config, 0.1).state_dict())
    more = {**weights, "mtp.fc.weight": torch.ones(2, 2)}
    assert from_huggingface(described, more)[1].keys() == from_huggingface(described, weights)[1].keys()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (small(norm="rmsnorm"), "norm = rmsnorm-1p only"),
        (small(attention_gate=False), "attention_gate = True only"),
        (small(n_shared_experts=0), "shared_expert_gate = True only"),
        (small(shared_expert_gate=False), "shared_expert_gate = True only"),
        (small(2, full_attention_interval=3), "layers with attention = True only"),
        (small(residual_scale=0.5), "residual_scale = 1.0 only"),
        (ModelConfig("llama", 32, 2, 4, 8, 48, 61, 24, rotary_dim=4), "rotary_dim = 8 only"),
    ],
)
def test_what_transformers_cannot_compute_is_refused(config: ModelConfig, message: str):
    with pytest.raises(UserError, match=message):
        require_class(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shared_expert_intermediate_size": 17}, "17, which is no multiple of moe_intermediate_size = 16"),
        ({"layer_types": ["full_attention", "linear_attention"] * 2}, "attention in every n-th layer"),
        ({"layer_types": ["linear_attention"]}, "attention in every n-th layer"),
        ({"linear_num_value_heads": 3}, "must divide linear_value_heads"),
        (
            {"linear_conv_kernel_dim": 3},
            r"conv1d.weight' has shape \[256, 1, 4\], the model needs \[256, 1, 3\]",
        ),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_type = 'yarn'"),
        (
            {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.35}},
            "rotary_dim is .*; it must be even",
        ),
    ],
)
def test_files_that_do_not_fit_are_refused_by_name(changes: dict[str, Any], message: str):
    described, weights = to_huggingface(CASES["hybrid"], random_model(CASES["hybrid"], 0.1).state_dict())
    with pytest.raises(UserError, match=message):
        from_huggingface({**described, **changes}, weights)


@pytest.mark.parametrize("count", [0, -1, "4"])
def test_a_number_of_experts_that_is_none_is_refused_by_its_name(count):
    described, weights = to_huggingface(
        CASES["attention"], random_model(CASES["attention"], 0.1).state_dict()
    )
    with pytest.raises(UserError, match=r"config\.json has num_experts = .*; it must be at least 1"):
        from_huggingface({**described, "num_experts": count}, weights)
