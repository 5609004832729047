"""Our models in the names and layouts of Hugging Face's `transformers`, and back.

    gpt                            GPT2LMHeadModel    maps are stored [in, out]; q, k, v are one map
    llama                          LlamaForCausalLM   rotary turns features j and j + H/2, ours 2j and 2j + 1
    qwen3 without attention gate   Qwen3ForCausalLM   likewise; the gains of QK-norm move with their features
    qwen3next                      Qwen3NextForCausalLM   see `danalab.models.huggingface.qwen3_next`
    llama, qwen3 with experts      MixtralForCausalLM, Qwen3MoeForCausalLM: `danalab.models.huggingface.experts`

Other models with rotary positions take along a class of ours (`danalab.models.huggingface.export_module`). All ways are
permutations of numbers, and exact. Needs no transformers. H: head dimension.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from danalab.errors import UserError
from danalab.models.build import build_model
from danalab.models.config import ModelConfig
from danalab.models.huggingface.experts import ARCHITECTURES as OF_EXPERTS
from danalab.models.huggingface.experts import (
    NAMINGS,
    experts_config,
    experts_obstacle,
    experts_out,
    experts_settings,
    take_experts,
)
from danalab.models.huggingface.export_module import ARCHITECTURES, MODEL_TYPE, from_module, in_module, module_settings
from danalab.models.huggingface.gpt2 import gpt_config, gpt_settings, gpt_weights, take_gpt
from danalab.models.huggingface.parts import Taker, Weights, plain, require, rotary_settings, to_halves, to_pairs
from danalab.models.huggingface.qwen3_next import next_config, next_settings, next_weights, take_next

_CLASSES = {"gpt": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM",
            "qwen3next": "Qwen3NextForCausalLM"}  # fmt: skip
_MODEL_TYPES = {"gpt2": "gpt", "llama": "llama", "qwen3": "qwen3", "qwen3_next": "qwen3next", **OF_EXPERTS}

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
"""Llama's and Qwen3's names of what a block has, by ours."""
_OUTSIDE = {
    "token_embedding.weight": "model.embed_tokens.weight",
    "final_norm.weight": "model.norm.weight",
    "output_head.weight": "lm_head.weight",
}
_ROTATED = ("attention.q.weight", "attention.k.weight", "attention.q_norm.weight", "attention.k_norm.weight")


# ---- out ----


def to_huggingface(config: ModelConfig, weights: Mapping[str, Tensor]) -> tuple[dict[str, Any], Weights]:
    """(config.json, named tensors) of `transformers` for a model and its state dict.

    Raises:
        UserError: `transformers` has no class that computes this model's function.
    """
    require_class(config)
    if _obstacle(config) is not None:
        return module_settings(config), dict(weights)
    described = {"architectures": [_CLASSES[config.arch]], "vocab_size": config.vocab_size, "use_cache": True,
                 "tie_word_embeddings": config.tied}  # fmt: skip
    if config.arch == "gpt":
        return described | gpt_settings(config), gpt_weights(config, weights)
    if config.arch == "qwen3next":
        return described | next_settings(config), next_weights(config, weights)
    names = _names(config)
    found = {
        names[ours]: to_halves(tensor, config.head_dim) if ours.endswith(_ROTATED) else tensor
        for ours, tensor in weights.items()
        if ours in names
    }
    settings = _rotary_settings(config)
    if config.sparsity is not None:
        described["architectures"] = [NAMINGS[config.arch].cls]
        settings |= experts_settings(config)
        found |= experts_out(config, weights)
    return described | settings, {name: tensor.contiguous() for name, tensor in found.items()}


def require_class(config: ModelConfig) -> None:
    """Find out whether a class of `transformers`, or ours, computes this model's function.

    Raises:
        UserError: none does; says what stands in the way.
    """
    obstacle = _obstacle(config)
    if obstacle is None or in_module(config):
        return
    if config.arch in ARCHITECTURES and config.arch not in _CLASSES:  # ours has it, but not with every switch
        obstacle = (
            f"no class, of transformers or ours, has {config.arch} with norm '{config.norm_kind}' and heads of which "
            f"{config.rotated} of {config.head_dim} features turn"
        )
    raise UserError(obstacle)


def _obstacle(config: ModelConfig) -> str | None:
    """Why `transformers` itself has no class for this model; None where it has one."""
    if config.arch not in _CLASSES:
        known = ", ".join(sorted({*_CLASSES, *ARCHITECTURES}))
        return f"transformers has no class for {config.arch}; what can be exported: {known}"
    structure = config.architecture
    wanted: dict[str, tuple[object, object]] = {
        "attention_gate": (config.gated, config.arch == "qwen3next"),
        "qk_norm": (config.qk_normed, structure.qk_norm),
        "norm": (config.norm_kind, config.architecture.norm),
        "residual_scale": (config.residual_scale, 1.0),
    }
    if config.arch == "gpt":
        wanted["n_kv_heads"] = (config.kv_heads, config.n_heads)
        wanted["n_heads x head_dim"] = (config.n_heads * config.head_dim, config.d_model)
    if config.arch == "llama":  # its configuration class divides, though it does not need the quotient
        wanted["d_model modulo n_heads"] = (config.d_model % config.n_heads, 0)
    if config.arch == "qwen3next":
        wanted["shared_expert_gate"] = (config.sparsity is not None and config.sparsity.shared_gate, True)
        linear = config.linear_attention
        wanted["layers with attention"] = (linear is None or len(linear.layers) < config.n_layers, True)
    else:
        if config.sparsity is not None and (obstacle := experts_obstacle(config)) is not None:
            return obstacle
        wanted["rotary_dim"] = (config.rotated, config.head_dim)
    for name, (is_, must_be) in wanted.items():
        if is_ != must_be:
            return f"{_CLASSES[config.arch]} has {name} = {must_be} only: a {config.arch} with {is_} cannot be exported"
    return None


def _rotary_settings(config: ModelConfig) -> dict[str, Any]:
    settings = {"model_type": config.arch, **rotary_settings(config)}
    return settings | ({"mlp_bias": False} if config.arch == "llama" else {"use_sliding_window": False})


def _names(config: ModelConfig) -> dict[str, str]:
    """Llama's and Qwen3's name of every weight, by ours."""
    outside = {ours: theirs for ours, theirs in _OUTSIDE.items() if ours != "output_head.weight" or not config.tied}
    sparse = () if config.sparsity is None else config.sparsity.layers
    return outside | {
        f"blocks.{layer}.{ours}": f"model.layers.{layer}.{theirs}"
        for layer in range(config.n_layers)
        for ours, theirs in _LAYER.items()
        if config.qk_normed or not ours.endswith(("q_norm.weight", "k_norm.weight"))
        if layer not in sparse or not ours.startswith("mlp.")
    }


# ---- in ----


def from_huggingface(described: Mapping[str, Any], weights: Mapping[str, Tensor]) -> tuple[ModelConfig, Weights]:
    """(configuration, state dict) of our model for a config.json and named tensors of `transformers`.

    Raises:
        UserError: another kind of model, a setting that ours cannot have, or weights that are missing, unknown or of a
            wrong shape.
    """
    kind = described.get("model_type")
    if kind == MODEL_TYPE:
        return _ours(from_module(described), weights)
    if not isinstance(kind, str) or kind not in _MODEL_TYPES:
        raise UserError(f"model_type '{kind}' cannot be imported; what can: {', '.join(_MODEL_TYPES)}, danalab")
    try:
        config = {"gpt2": gpt_config, "qwen3_next": next_config}.get(kind, _rotary_config)(described)
    except KeyError as error:
        raise UserError(f"config.json of a {kind} model has no '{error.args[0]}'") from None
    except UserError:
        raise
    except (TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        raise UserError(f"config.json of a {kind} model cannot be used: {error}") from None
    given = plain(weights, "transformer." if kind == "gpt2" else "model.")
    if config.tied:
        given.pop("lm_head.weight", None)
    take = Taker(given)
    found = {"gpt2": take_gpt, "qwen3_next": take_next}.get(kind, _take_rotary)(config, take)
    take.finish()
    return config, found


def _ours(config: ModelConfig, weights: Mapping[str, Tensor]) -> tuple[ModelConfig, Weights]:
    take = Taker(dict(weights))
    wanted = build_model(config, device="meta").state_dict()
    found = {name: take(name, *tensor.shape) for name, tensor in wanted.items()}
    take.finish()
    return config, found


def _rotary_config(described: Mapping[str, Any]) -> ModelConfig:
    for name in ("attention_bias", "mlp_bias", "use_sliding_window"):
        require(described, name, (False,), False)
    require(described, "hidden_act", ("silu",), "silu")
    rope = described.get("rope_parameters") or described.get("rope_scaling") or {}
    require(rope, "rope_type", ("default",), rope.get("type", "default"))
    require(rope, "partial_rotary_factor", (1, 1.0), 1.0)
    heads = described["num_attention_heads"]
    keys = described.get("num_key_value_heads")
    return ModelConfig(
        _MODEL_TYPES[described["model_type"]],
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
        **(experts_config(described) if described["model_type"] in OF_EXPERTS else {}),
    )


def _take_rotary(config: ModelConfig, take: Taker) -> Weights:
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
    found = {}
    for ours, theirs in _names(config).items():
        tensor = take(theirs, *shapes[re.sub(r"^blocks\.\d+\.", "", ours).removesuffix(".weight")])
        found[ours] = to_pairs(tensor, dim) if ours.endswith(_ROTATED) else tensor
    return found if config.sparsity is None else found | take_experts(config, take)
