"""qwen3next as Qwen3NextForCausalLM, and back: exact, by permutations.

    self_attn.q_proj           head by head, its queries and then its gate
    linear_attn.in_proj_qkvz   key head by key head: query, key, its values, their z
    linear_attn.in_proj_ba     key head by key head: write strength and decay of its value heads
    linear_attn.conv1d         the channels of all queries, keys and values
    mlp.experts.E.*            one matrix an expert, as in published files; read also as the stacks of version 5

Only the first `rotary_dim` features of a head are rotated, and only these are permuted. H: head dimension.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from danalab.errors import UserError
from danalab.models.config import ModelConfig
from danalab.models.huggingface.common import TensorReader, Weights, require, rotary_settings, to_halves, to_pairs
from danalab.scaling.shape import LinearAttention, Sparsity

_OUTSIDE = {"token_embedding": "model.embed_tokens", "final_norm": "model.norm", "output_head": "lm_head"}
_NORMS = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
_MLP = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}


# ---- out ----


def to_settings(config: ModelConfig) -> dict[str, Any]:
    """config.json without the entries that all models have; the model has experts with a gated shared one."""
    sparsity, linear = config.sparsity, config.linear_attention
    assert sparsity is not None
    factor = config.rotated / config.head_dim
    if int(config.head_dim * factor) < config.rotated:  # transformers rounds down
        factor = (config.rotated + 0.5) / config.head_dim
    rotary = rotary_settings(config)
    settings: dict[str, Any] = {
        "model_type": "qwen3_next",
        **rotary,
        # As with rope_theta: transformers reads the first before version 5, the second since.
        "partial_rotary_factor": factor,
        "rope_parameters": {**rotary["rope_parameters"], "partial_rotary_factor": factor},
        "layer_types": [
            "linear_attention" if linear is not None and layer in linear.layers else "full_attention"
            for layer in range(config.n_layers)
        ],
        "num_experts": sparsity.n_experts,
        "num_experts_per_tok": sparsity.top_k,
        "moe_intermediate_size": sparsity.expert_dim,
        "shared_expert_intermediate_size": sparsity.shared_dim,
        "norm_topk_prob": config.renormalise,
        "router_aux_loss_coef": config.load_balance_loss,
        "decoder_sparse_step": config.decoder_sparse_step,
        "mlp_only_layers": list(config.mlp_only_layers),
    }
    if linear is not None:
        settings |= {
            "linear_num_key_heads": linear.key_heads,
            "linear_num_value_heads": linear.value_heads,
            "linear_key_head_dim": linear.key_dim,
            "linear_value_head_dim": linear.value_dim,
            "linear_conv_kernel_dim": linear.conv_size,
        }
    return settings


def to_weights(config: ModelConfig, weights: Mapping[str, Tensor]) -> Weights:
    """The named tensors of `transformers` for a state dict of ours."""
    named = {f"{_OUTSIDE[ours]}.weight": weights[f"{ours}.weight"] for ours in _outside(config)}
    sparsity, linear = config.sparsity, config.linear_attention
    assert sparsity is not None
    for layer in range(config.n_layers):

        def of(name: str, layer: int = layer) -> Tensor:
            return weights[f"blocks.{layer}.{name}"]

        parts = {f"{theirs}.weight": of(f"{ours}.weight") for ours, theirs in _NORMS.items()}
        parts |= _attention_out(config, of) if linear is None or layer not in linear.layers else _linear_out(linear, of)
        parts |= _experts_out(sparsity, of) if layer in sparsity.layers else _mlp_out("mlp", of, "mlp")
        named |= {f"model.layers.{layer}.{name}": tensor for name, tensor in parts.items()}
    return {name: tensor.contiguous() for name, tensor in named.items()}


def _outside(config: ModelConfig) -> list[str]:
    return [name for name in _OUTSIDE if name != "output_head" or not config.tied]


def _permuted(rows: Tensor, config: ModelConfig, way: Callable[[Tensor, int], Tensor]) -> Tensor:
    """`rows` [heads x H] or [heads x H, D] with their rotated features permuted by `way`."""
    heads = rows.unflatten(0, (-1, config.head_dim))
    rotated, rest = heads.split((config.rotated, config.head_dim - config.rotated), dim=1)
    moved = way(rotated.flatten(0, 1), config.rotated).unflatten(0, (-1, config.rotated))
    return torch.cat((moved, rest), dim=1).flatten(0, 1)


def _attention_out(config: ModelConfig, of: Callable[[str], Tensor]) -> Weights:
    queries = _permuted(of("attention.q.weight"), config, to_halves)
    both = [rows.unflatten(0, (-1, config.head_dim)) for rows in (queries, of("attention.gate.weight"))]
    return {
        "self_attn.q_proj.weight": torch.cat(both, dim=1).flatten(0, 1),
        "self_attn.k_proj.weight": _permuted(of("attention.k.weight"), config, to_halves),
        "self_attn.v_proj.weight": of("attention.v.weight"),
        "self_attn.o_proj.weight": of("attention.out.weight"),
        "self_attn.q_norm.weight": _permuted(of("attention.q_norm.weight"), config, to_halves),
        "self_attn.k_norm.weight": _permuted(of("attention.k_norm.weight"), config, to_halves),
    }


def _linear_out(linear: LinearAttention, of: Callable[[str], Tensor]) -> Weights:
    def joined(*names: str) -> Tensor:
        heads = [of(f"attention.{name}.weight").unflatten(0, (linear.key_heads, -1)) for name in names]
        return torch.cat(heads, dim=1).flatten(0, 1)

    taps = [of(f"attention.{name}_conv.weight") for name in ("query", "key", "value")]
    return {
        "linear_attn.in_proj_qkvz.weight": joined("query", "key", "value", "z"),
        "linear_attn.in_proj_ba.weight": joined("write", "forget"),
        "linear_attn.conv1d.weight": torch.cat(taps).unsqueeze(1),
        "linear_attn.A_log": of("attention.forgetting.A_log"),
        "linear_attn.dt_bias": of("attention.forgetting.dt_bias"),
        "linear_attn.norm.weight": of("attention.norm.weight"),
        "linear_attn.out_proj.weight": of("attention.out.weight"),
    }


def _mlp_out(theirs: str, of: Callable[[str], Tensor], ours: str) -> Weights:
    return {f"{theirs}.{name}.weight": of(f"{ours}.{mine}.weight") for mine, name in _MLP.items()}


def _experts_out(sparsity: Sparsity, of: Callable[[str], Tensor]) -> Weights:
    named = _mlp_out("mlp.shared_expert", of, "mlp.shared")
    named["mlp.gate.weight"] = of("mlp.router.map.weight")
    named["mlp.shared_expert_gate.weight"] = of("mlp.shared_gate.weight")
    for mine, name in _MLP.items():
        for expert, weight in enumerate(of(f"mlp.experts.{mine}.weight")):
            named[f"mlp.experts.{expert}.{name}.weight"] = weight
    return named


# ---- in ----


def from_settings(described: Mapping[str, Any]) -> ModelConfig:
    """The configuration that a config.json of model type qwen3_next describes.

    Raises:
        UserError: a setting that our models do not support.
        KeyError: a setting is missing.
    """
    require(described, "attention_bias", (False,), False)
    require(described, "hidden_act", ("silu",), "silu")
    rope = described.get("rope_parameters") or described.get("rope_scaling") or {}
    require(rope, "rope_type", ("default",), rope.get("type", "default"))
    factor = rope.get("partial_rotary_factor") or described.get("partial_rotary_factor") or 0.25
    expert, shared = described["moe_intermediate_size"], described["shared_expert_intermediate_size"]
    if shared < expert or shared % expert:
        raise UserError(
            f"config.json has shared_expert_intermediate_size = {shared}, which is no multiple of "
            f"moe_intermediate_size = {expert}: our shared experts have the width of the others"
        )
    interval = _interval(described)
    linear: dict[str, Any] = {}
    if interval > 1:
        linear = {
            "full_attention_interval": interval,
            "linear_key_heads": described["linear_num_key_heads"],
            "linear_value_heads": described["linear_num_value_heads"],
            "linear_key_dim": described["linear_key_head_dim"],
            "linear_value_dim": described["linear_value_head_dim"],
            "conv_size": described["linear_conv_kernel_dim"],
        }
    heads, keys, head_dim = (described[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    return ModelConfig(
        "qwen3next",
        described["hidden_size"],
        described["num_hidden_layers"],
        heads,
        head_dim,
        described["intermediate_size"],
        described["vocab_size"],
        described["max_position_embeddings"],
        norm_eps=described.get("rms_norm_eps", 1e-6),
        n_kv_heads=None if keys == heads else keys,
        rope_theta=float(rope.get("rope_theta") or described.get("rope_theta") or 10000.0),
        rotary_dim=int(head_dim * factor),
        tied_head=described.get("tie_word_embeddings", False),
        n_experts=described["num_experts"],
        top_k=described["num_experts_per_tok"],
        expert_dim=expert,
        n_shared_experts=shared // expert,
        shared_expert_gate=True,
        decoder_sparse_step=described.get("decoder_sparse_step", 1),
        mlp_only_layers=tuple(described.get("mlp_only_layers") or ()),
        renormalise=described.get("norm_topk_prob", True),
        load_balance_loss=described.get("router_aux_loss_coef", 0.001),
        **linear,
    )


def _interval(described: Mapping[str, Any]) -> int:
    """`full_attention_interval`, from the list of layers where there is one."""
    kinds = described.get("layer_types")
    if kinds is None:
        return described.get("full_attention_interval", 4)
    kinds = list(kinds)
    interval = (kinds.index("full_attention") if "full_attention" in kinds else len(kinds)) + 1
    regular = ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(len(kinds))]
    if kinds == regular and len(kinds) == described["num_hidden_layers"]:
        return interval
    raise UserError(
        "config.json has layer_types other than attention in every n-th layer and linear attention in the others, "
        "one for each layer, which our models do not support"
    )


def from_weights(config: ModelConfig, read: TensorReader) -> Weights:
    """Our state dict from the named tensors of `transformers`."""
    d, linear, sparsity = config.d_model, config.linear_attention, config.sparsity
    assert sparsity is not None
    ours_by_name = {
        f"{ours}.weight": read(f"{_OUTSIDE[ours]}.weight", *((d,) if ours == "final_norm" else (config.vocab_size, d)))
        for ours in _outside(config)
    }
    for layer in range(config.n_layers):
        prefix = f"model.layers.{layer}."
        parts = {f"{ours}.weight": read(f"{prefix}{theirs}.weight", d) for ours, theirs in _NORMS.items()}
        if linear is None or layer not in linear.layers:
            parts |= _read_attention(config, read, prefix)
        else:
            parts |= _read_linear(linear, d, read, prefix)
        if layer in sparsity.layers:
            parts |= _read_experts(sparsity, d, read, f"{prefix}mlp.")
        else:
            parts |= _read_mlp("mlp", read, f"{prefix}mlp", d, config.mlp_dim)
        ours_by_name |= {f"blocks.{layer}.{name}": tensor for name, tensor in parts.items()}
    return ours_by_name


def _read_attention(config: ModelConfig, read: TensorReader, prefix: str) -> Weights:
    d, dim = config.d_model, config.head_dim
    queries, keys = config.n_heads * dim, config.kv_heads * dim
    both = read(f"{prefix}self_attn.q_proj.weight", 2 * queries, d).unflatten(0, (-1, 2, dim))
    ours_by_name = {
        "q.weight": _permuted(both[:, 0].flatten(0, 1), config, to_pairs),
        "gate.weight": both[:, 1].flatten(0, 1),
        "k.weight": _permuted(read(f"{prefix}self_attn.k_proj.weight", keys, d), config, to_pairs),
        "v.weight": read(f"{prefix}self_attn.v_proj.weight", keys, d),
        "out.weight": read(f"{prefix}self_attn.o_proj.weight", d, queries),
        "q_norm.weight": _permuted(read(f"{prefix}self_attn.q_norm.weight", dim), config, to_pairs),
        "k_norm.weight": _permuted(read(f"{prefix}self_attn.k_norm.weight", dim), config, to_pairs),
    }
    return {f"attention.{name}": tensor for name, tensor in ours_by_name.items()}


def _read_linear(linear: LinearAttention, d: int, read: TensorReader, prefix: str) -> Weights:
    keys, values, heads = linear.key_width, linear.value_width, linear.value_heads

    def apart(name: str, **widths: int) -> Weights:
        rows = read(f"{prefix}linear_attn.{name}.weight", sum(widths.values()), d)
        parts = rows.unflatten(0, (linear.key_heads, -1)).split([w // linear.key_heads for w in widths.values()], dim=1)
        return {f"{ours}.weight": part.flatten(0, 1) for ours, part in zip(widths, parts, strict=True)}

    taps = read(f"{prefix}linear_attn.conv1d.weight", 2 * keys + values, 1, linear.conv_size)
    taps = taps.squeeze(1).split((keys, keys, values))
    ours_by_name = {
        **apart("in_proj_qkvz", query=keys, key=keys, value=values, z=values),
        **apart("in_proj_ba", write=heads, forget=heads),
        **{f"{name}_conv.weight": rows for name, rows in zip(("query", "key", "value"), taps, strict=True)},
        "forgetting.A_log": read(f"{prefix}linear_attn.A_log", heads),
        "forgetting.dt_bias": read(f"{prefix}linear_attn.dt_bias", heads),
        "norm.weight": read(f"{prefix}linear_attn.norm.weight", linear.value_dim),
        "out.weight": read(f"{prefix}linear_attn.out_proj.weight", d, values),
    }
    return {f"attention.{name}": tensor for name, tensor in ours_by_name.items()}


def _read_mlp(ours: str, read: TensorReader, theirs: str, d: int, wide: int) -> Weights:
    return {
        f"{ours}.{mine}.weight": read(f"{theirs}.{name}.weight", *((d, wide) if mine == "down" else (wide, d)))
        for mine, name in _MLP.items()
    }


def _read_experts(sparsity: Sparsity, d: int, read: TensorReader, prefix: str) -> Weights:
    count, wide = sparsity.n_experts, sparsity.expert_dim
    if f"{prefix}experts.gate_up_proj" in read:
        gate, up = read(f"{prefix}experts.gate_up_proj", count, 2 * wide, d).split(wide, dim=1)
        stacks = {"gate": gate, "up": up, "down": read(f"{prefix}experts.down_proj", count, d, wide)}
    else:
        each = [_read_mlp("of", read, f"{prefix}experts.{expert}", d, wide) for expert in range(count)]
        stacks = {mine: torch.stack([one[f"of.{mine}.weight"] for one in each]) for mine in _MLP}
    return {
        **{f"mlp.experts.{mine}.weight": stack for mine, stack in stacks.items()},
        **_read_mlp("mlp.shared", read, f"{prefix}shared_expert", d, sparsity.shared_dim),
        "mlp.router.map.weight": read(f"{prefix}gate.weight", count, d),
        "mlp.shared_gate.weight": read(f"{prefix}shared_expert_gate.weight", 1, d),
    }
