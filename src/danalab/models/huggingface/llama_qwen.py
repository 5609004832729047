"""llama and qwen3 as LlamaForCausalLM and Qwen3ForCausalLM, with experts as Mixtral and Qwen3-MoE, and back.

    llama with experts                            MixtralForCausalLM     every layer sparse, weights renormalised
    qwen3 with experts, without attention gate    Qwen3MoeForCausalLM

Rotary embedding turns features j and j + H/2 there, 2j and 2j + 1 here; gains of QK-norm are permuted likewise. There
is one matrix for each expert, as in published files; the stacks of version 5 are read, too. Shared experts: none.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from danalab.models.config import ModelConfig
from danalab.models.huggingface.common import TensorReader, Weights, require, rotary_settings, to_halves, to_pairs


class Naming(NamedTuple):
    """The names that a class of `transformers` has for a sparse layer."""

    cls: str
    model_type: str
    module: str
    gate: str
    up: str
    down: str


NAMINGS = {
    "llama": Naming("MixtralForCausalLM", "mixtral", "block_sparse_moe", "w1", "w3", "w2"),
    "qwen3": Naming("Qwen3MoeForCausalLM", "qwen3_moe", "mlp", "gate_proj", "up_proj", "down_proj"),
}
"""By our architecture."""
MODEL_TYPES = {naming.model_type: arch for arch, naming in NAMINGS.items()}
"""By model_type."""
_LAYER = {
    "attention_norm.weight": "input_layernorm.weight",
    "attention.q.weight": "self_attn.q_proj.weight",
    "attention.k.weight": "self_attn.k_proj.weight",
    "attention.v.weight": "self_attn.v_proj.weight",
    "attention.out.weight": "self_attn.o_proj.weight",
    "attention.q_norm.weight": "self_attn.q_norm.weight",
    "attention.k_norm.weight": "self_attn.k_norm.weight",
    "mlp_norm.weight": "post_attention_layernorm.weight",
    "mlp.gate.weight": "mlp.gate_proj.weight",
    "mlp.up.weight": "mlp.up_proj.weight",
    "mlp.down.weight": "mlp.down_proj.weight",
}
"""Names of a block's weights, by ours."""
_OUTSIDE = {
    "token_embedding.weight": "model.embed_tokens.weight",
    "final_norm.weight": "model.norm.weight",
    "output_head.weight": "lm_head.weight",
}
_ARCHITECTURES = {"llama": "llama", "qwen3": "qwen3", **MODEL_TYPES}
"""By model_type."""
_ROTATED = ("attention.q.weight", "attention.k.weight", "attention.q_norm.weight", "attention.k_norm.weight")


def to_settings(config: ModelConfig) -> dict[str, Any]:
    """config.json without the entries that all models have."""
    settings = {"model_type": config.arch, **rotary_settings(config)}
    settings |= {"mlp_bias": False} if config.arch == "llama" else {"use_sliding_window": False}
    return settings if config.sparsity is None else settings | expert_settings(config)


def to_weights(config: ModelConfig, weights: Mapping[str, Tensor]) -> Weights:
    """Named tensors of `transformers` from our state dict."""
    names = _names(config)
    named = {
        names[ours]: to_halves(tensor, config.head_dim) if ours.endswith(_ROTATED) else tensor
        for ours, tensor in weights.items()
        if ours in names
    }
    if config.sparsity is not None:
        named |= expert_weights(config, weights)
    return {name: tensor.contiguous() for name, tensor in named.items()}


def from_settings(described: Mapping[str, Any]) -> ModelConfig:
    """Our configuration for a config.json.

    Raises:
        UserError: a setting that our models do not support.
        KeyError: a setting is missing.
    """
    for name in ("attention_bias", "mlp_bias", "use_sliding_window"):
        require(described, name, (False,), False)
    require(described, "hidden_act", ("silu",), "silu")
    rope = described.get("rope_parameters") or described.get("rope_scaling") or {}
    require(rope, "rope_type", ("default",), rope.get("type", "default"))
    require(rope, "partial_rotary_factor", (1, 1.0), 1.0)
    heads = described["num_attention_heads"]
    keys = described.get("num_key_value_heads")
    return ModelConfig(
        _ARCHITECTURES[described["model_type"]],
        described["hidden_size"],
        described["num_hidden_layers"],
        heads,
        described.get("head_dim") or described["hidden_size"] // heads,
        described["intermediate_size"],
        described["vocab_size"],
        described["max_position_embeddings"],
        norm_eps=described.get("rms_norm_eps", 1e-6),
        attention_gate=False,
        n_kv_heads=None if keys == heads else keys,
        rope_theta=float(rope.get("rope_theta") or described.get("rope_theta") or 10000.0),
        tied_head=described.get("tie_word_embeddings", False),
        **(expert_fields(described) if described["model_type"] in MODEL_TYPES else {}),
    )


def from_weights(config: ModelConfig, read: TensorReader) -> Weights:
    """Our state dict from named tensors."""
    d, wide, dim = config.d_model, config.mlp_dim, config.head_dim
    queries, keys = config.n_heads * dim, config.kv_heads * dim
    shapes: dict[str, tuple[int, ...]] = {
        **dict.fromkeys(("token_embedding", "output_head"), (config.vocab_size, d)),
        **dict.fromkeys(("attention_norm", "mlp_norm", "final_norm"), (d,)),
        **dict.fromkeys(("attention.k", "attention.v"), (keys, d)),
        **dict.fromkeys(("attention.q_norm", "attention.k_norm"), (dim,)),
        **dict.fromkeys(("mlp.gate", "mlp.up"), (wide, d)),
        "attention.q": (queries, d),
        "attention.out": (d, queries),
        "mlp.down": (d, wide),
    }
    ours_by_name = {}
    for ours, theirs in _names(config).items():
        tensor = read(theirs, *shapes[re.sub(r"^blocks\.\d+\.", "", ours).removesuffix(".weight")])
        ours_by_name[ours] = to_pairs(tensor, dim) if ours.endswith(_ROTATED) else tensor
    return ours_by_name if config.sparsity is None else ours_by_name | read_experts(config, read)


def _names(config: ModelConfig) -> dict[str, str]:
    """Their name of every weight, by ours."""
    outside = {ours: theirs for ours, theirs in _OUTSIDE.items() if ours != "output_head.weight" or not config.tied}
    sparse = () if config.sparsity is None else config.sparsity.layers
    return outside | {
        f"blocks.{layer}.{ours}": f"model.layers.{layer}.{theirs}"
        for layer in range(config.n_layers)
        for ours, theirs in _LAYER.items()
        if config.qk_normed or not ours.endswith(("q_norm.weight", "k_norm.weight"))
        if layer not in sparse or not ours.startswith("mlp.")
    }


def expert_obstacle(config: ModelConfig) -> str | None:
    """Why `transformers` has no class for a model with these experts; None where it has one."""
    sparsity = config.sparsity
    assert sparsity is not None
    if config.arch not in NAMINGS:
        return f"transformers has no class for {config.arch} with experts"
    cls = NAMINGS[config.arch].cls
    if sparsity.shared_dim:
        return f"{cls} has no shared experts"
    if config.arch == "llama":
        if len(sparsity.layers) < config.n_layers:
            return f"{cls} has experts in all layers"
        if not config.renormalise:
            return f"{cls} renormalises the weights of a token's experts"
    return None


def expert_settings(config: ModelConfig) -> dict[str, Any]:
    """config.json entries of the experts."""
    sparsity = config.sparsity
    assert sparsity is not None
    common = {
        "model_type": NAMINGS[config.arch].model_type,
        "num_experts_per_tok": sparsity.top_k,
        "router_aux_loss_coef": config.load_balance_loss,
    }
    if config.arch == "llama":
        return {
            **common,
            "num_local_experts": sparsity.n_experts,
            "intermediate_size": sparsity.expert_dim,
            "sliding_window": None,
        }
    return {
        **common,
        "num_experts": sparsity.n_experts,
        "moe_intermediate_size": sparsity.expert_dim,
        "norm_topk_prob": config.renormalise,
        "decoder_sparse_step": config.decoder_sparse_step,
        "mlp_only_layers": list(config.mlp_only_layers),
    }


def expert_fields(described: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `ModelConfig` for the experts of config.json.

    Raises:
        UserError: a setting that our models do not support.
        KeyError: a setting is missing.
    """
    common = {
        "top_k": described["num_experts_per_tok"],
        "load_balance_loss": described.get("router_aux_loss_coef", 0.001),
    }
    if described["model_type"] == "mixtral":
        require(described, "sliding_window", (None,), None)
        return {**common, "n_experts": described["num_local_experts"]}
    return {
        **common,
        # Version 5 saves it under the second name.
        "n_experts": described["num_experts" if "num_experts" in described else "num_local_experts"],
        "expert_dim": described["moe_intermediate_size"],
        "renormalise": described.get("norm_topk_prob", False),
        "decoder_sparse_step": described.get("decoder_sparse_step", 1),
        "mlp_only_layers": tuple(described.get("mlp_only_layers") or ()),
    }


def expert_weights(config: ModelConfig, weights: Mapping[str, Tensor]) -> Weights:
    """The named tensors of `transformers` for routers and experts."""
    naming, sparsity = NAMINGS[config.arch], config.sparsity
    assert sparsity is not None
    named: Weights = {}
    for layer in sparsity.layers:
        ours, theirs = f"blocks.{layer}.mlp", f"model.layers.{layer}.{naming.module}"
        named[f"{theirs}.gate.weight"] = weights[f"{ours}.router.map.weight"]
        for part in ("gate", "up", "down"):
            for expert, matrix in enumerate(weights[f"{ours}.experts.{part}.weight"]):
                named[f"{theirs}.experts.{expert}.{getattr(naming, part)}.weight"] = matrix.contiguous()
    return named


def read_experts(config: ModelConfig, read: TensorReader) -> Weights:
    """Our routers and experts from the named tensors of `transformers`."""
    naming, sparsity, d = NAMINGS[config.arch], config.sparsity, config.d_model
    assert sparsity is not None
    count, wide = sparsity.n_experts, sparsity.expert_dim
    ours_by_name: Weights = {}
    for layer in sparsity.layers:
        ours, theirs = f"blocks.{layer}.mlp", f"model.layers.{layer}.{naming.module}"
        stacks = f"model.layers.{layer}.mlp.experts"
        if f"{stacks}.gate_up_proj" in read:
            theirs = f"model.layers.{layer}.mlp"
            gate, up = read(f"{stacks}.gate_up_proj", count, 2 * wide, d).split(wide, dim=1)
            parts = {"gate": gate, "up": up, "down": read(f"{stacks}.down_proj", count, d, wide)}
        else:
            parts = {
                part: torch.stack(
                    [read(f"{theirs}.experts.{e}.{getattr(naming, part)}.weight", *shape) for e in range(count)]
                )
                for part, shape in (("gate", (wide, d)), ("up", (wide, d)), ("down", (d, wide)))
            }
        ours_by_name[f"{ours}.router.map.weight"] = read(f"{theirs}.gate.weight", count, d)
        ours_by_name |= {f"{ours}.experts.{part}.weight": stack for part, stack in parts.items()}
    return ours_by_name
