"""llama and qwen3 as LlamaForCausalLM and Qwen3ForCausalLM, and back.

Rotary embedding turns features j and j + H/2 there, 2j and 2j + 1 here; gains of QK-norm are permuted likewise.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from danalab.models.config import ModelConfig
from danalab.models.huggingface import common


def entries(config: ModelConfig) -> list[common.Entry]:
    """The tensors of the class of `transformers`."""
    d, dim = config.d_model, config.head_dim
    queries, keys = config.n_heads * dim, config.kv_heads * dim
    out, back = partial(common.to_halves, head_dim=dim), partial(common.to_pairs, head_dim=dim)
    table = common.outer_entries(config)
    for layer in range(config.n_layers):
        ours, theirs = f"blocks.{layer}", f"model.layers.{layer}"
        plain = {
            "attention_norm": ("input_layernorm", (d,)),
            "attention.v": ("self_attn.v_proj", (keys, d)),
            "attention.out": ("self_attn.o_proj", (d, queries)),
            "mlp_norm": ("post_attention_layernorm", (d,)),
        }
        rotated = {"q": ("q_proj", (queries, d)), "k": ("k_proj", (keys, d))}
        if config.choice("qk_norm"):
            rotated |= {"q_norm": ("q_norm", (dim,)), "k_norm": ("k_norm", (dim,))}
        for mine, (name, shape) in plain.items():
            table.append(common.Entry(f"{theirs}.{name}.weight", shape, (f"{ours}.{mine}.weight",)))
        for mine, (name, shape) in rotated.items():
            name = f"{theirs}.self_attn.{name}.weight"
            table.append(common.Entry.permuted(name, shape, f"{ours}.attention.{mine}.weight", out, back))
        table += common.mlp_entries(f"{theirs}.mlp", f"{ours}.mlp", d, config.mlp_dim)
    return table


def to_settings(config: ModelConfig) -> dict[str, Any]:
    """config.json without the entries that all models have."""
    more = {"mlp_bias": False} if config.arch == "llama" else {"use_sliding_window": False}
    return {"model_type": config.arch, **common.rotary_settings(config), **more}


def from_settings(described: Mapping[str, Any]) -> ModelConfig:
    """Our configuration for a config.json; `KeyError` if a setting is missing."""
    for name in ("mlp_bias", "use_sliding_window"):
        common.require(described, name, (False,), False)
    fields, rope = common.rotary_fields(described)
    common.require(rope, "partial_rotary_factor", (1, 1.0), 1.0)
    return ModelConfig(described["model_type"], **fields, attention_gate=False)
