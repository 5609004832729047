"""llama and qwen3 as LlamaForCausalLM and Qwen3ForCausalLM, with experts as Mixtral and Qwen3-MoE, and back.

    llama with experts                            MixtralForCausalLM     every layer sparse, weights renormalised
    qwen3 with experts, without attention gate    Qwen3MoeForCausalLM

Rotary embedding turns features j and j + H/2 there, 2j and 2j + 1 here; gains of QK-norm are permuted likewise. There
is one matrix for each expert, as in published files; the stacks of version 5 are read, too. Shared experts: none.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from danalab.models.config import ModelConfig
from danalab.models.huggingface import common


class Naming(NamedTuple):
    """The names that a class of `transformers` has for a sparse layer."""

    cls: str
    model_type: str
    module: str
    projections: tuple[str, str, str]
    """Gate, up, down."""


MLP_NAMES = ("gate_proj", "up_proj", "down_proj")
NAMINGS = {
    "llama": Naming("MixtralForCausalLM", "mixtral", "block_sparse_moe", ("w1", "w3", "w2")),
    "qwen3": Naming("Qwen3MoeForCausalLM", "qwen3_moe", "mlp", MLP_NAMES),
}
"""Our architecture -> names of its sparse layers."""
MODEL_TYPES = {naming.model_type: arch for arch, naming in NAMINGS.items()}
"""model_type -> our architecture, of models with experts."""
_ARCHITECTURES = {"llama": "llama", "qwen3": "qwen3", **MODEL_TYPES}  # by model_type


def entries(config: ModelConfig, read: common.TensorReader | None = None) -> list[common.Entry]:
    """The tensors of the class of `transformers`."""
    d, dim = config.d_model, config.head_dim
    queries, keys = config.n_heads * dim, config.kv_heads * dim
    sparse = () if config.sparsity is None else config.sparsity.layers
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
        if config.qk_normed:
            rotated |= {"q_norm": ("q_norm", (dim,)), "k_norm": ("k_norm", (dim,))}
        for mine, (name, shape) in plain.items():
            table.append(common.Entry(f"{theirs}.{name}.weight", shape, (f"{ours}.{mine}.weight",)))
        for mine, (name, shape) in rotated.items():
            name = f"{theirs}.self_attn.{name}.weight"
            table.append(common.Entry.permuted(name, shape, f"{ours}.attention.{mine}.weight", out, back))
        if layer in sparse:
            naming = NAMINGS[config.arch]
            table += common.expert_entries(config, layer, naming.module, naming.projections, read)
        else:
            table += common.mlp_entries(f"{theirs}.mlp", f"{ours}.mlp", MLP_NAMES, d, config.mlp_dim)
    return table


def to_settings(config: ModelConfig) -> dict[str, Any]:
    """config.json without the entries that all models have."""
    settings = {"model_type": config.arch, **common.rotary_settings(config)}
    settings |= {"mlp_bias": False} if config.arch == "llama" else {"use_sliding_window": False}
    if config.sparsity is None:
        return settings
    settings |= {"model_type": NAMINGS[config.arch].model_type}
    if config.arch == "qwen3":
        return settings | common.layer_settings(config)
    return settings | {
        "num_experts_per_tok": config.sparsity.top_k,
        "router_aux_loss_coef": config.load_balance_loss,
        "num_local_experts": config.sparsity.n_experts,
        "intermediate_size": config.sparsity.expert_dim,
        "sliding_window": None,
    }


def from_settings(described: Mapping[str, Any]) -> ModelConfig:
    """Our configuration for a config.json; `KeyError` if a setting is missing."""
    for name in ("mlp_bias", "use_sliding_window"):
        common.require(described, name, (False,), False)
    fields, rope = common.rotary_fields(described)
    common.require(rope, "partial_rotary_factor", (1, 1.0), 1.0)
    kind = described["model_type"]
    if kind == "mixtral":
        common.require(described, "sliding_window", (None,), None)
        fields |= {
            "top_k": described["num_experts_per_tok"],
            "load_balance_loss": described.get("router_aux_loss_coef", 0.001),
            "n_experts": described["num_local_experts"],
        }
    elif kind in MODEL_TYPES:
        fields |= common.layer_fields(described, renormalise=False)
    return ModelConfig(_ARCHITECTURES[kind], **fields, attention_gate=False)


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
