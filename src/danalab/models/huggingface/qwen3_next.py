"""qwen3next as Qwen3NextForCausalLM, and back: exact, by permutations.

    self_attn.q_proj           head by head, its queries and then its gate
    linear_attn.in_proj_qkvz   key head by key head: query, key, its values, their z
    linear_attn.in_proj_ba     key head by key head: write strength and decay of its value heads
    linear_attn.conv1d         the channels of all queries, keys and values
    mlp.experts.E.*            one matrix an expert, as in published files; read also as the stacks of version 5

Only the first `rotary_dim` features of a head are rotated, and only these are permuted. H: head dimension.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from danalab.errors import UserError
from danalab.models.config import LinearAttention, ModelConfig, Sparsity
from danalab.models.huggingface import common


def entries(config: ModelConfig) -> list[common.Entry]:
    """The tensors of `Qwen3NextForCausalLM`."""
    d, linear, sparsity = config.d_model, config.linear_attention, config.sparsity
    assert sparsity is not None
    table = common.outer_entries(config)
    for layer in range(config.n_layers):
        ours, theirs = f"blocks.{layer}", f"model.layers.{layer}"
        for mine, name in (("attention_norm", "input_layernorm"), ("mlp_norm", "post_attention_layernorm")):
            table.append(common.Entry(f"{theirs}.{name}.weight", (d,), (f"{ours}.{mine}.weight",)))
        if linear is None or layer not in linear.layers:
            table += _attention_entries(config, f"{theirs}.self_attn", f"{ours}.attention")
        else:
            table += _linear_entries(linear, d, f"{theirs}.linear_attn", f"{ours}.attention")
        if layer in sparsity.layers:
            table += _expert_entries(sparsity, d, f"{theirs}.mlp", f"{ours}.mlp")
        else:
            table += common.mlp_entries(f"{theirs}.mlp", f"{ours}.mlp", d, config.mlp_dim)
    return table


def _expert_entries(sparsity: Sparsity, d: int, theirs: str, ours: str) -> list[common.Entry]:
    """Router, experts and the shared one of a layer."""
    count, wide = sparsity.n_experts, sparsity.expert_dim
    table = [
        common.Entry(f"{theirs}.gate.weight", (count, d), (f"{ours}.router.map.weight",)),
        common.Entry(f"{theirs}.shared_expert_gate.weight", (1, d), (f"{ours}.shared_gate.weight",)),
        *common.mlp_entries(f"{theirs}.shared_expert", f"{ours}.shared", d, sparsity.shared_dim),
    ]
    for e in range(count):
        table += common.mlp_entries(f"{theirs}.experts.{e}", f"{ours}.experts", d, wide, e)
    return table


def _attention_entries(config: ModelConfig, theirs: str, ours: str) -> list[common.Entry]:
    d, dim = config.d_model, config.head_dim
    queries, keys = config.n_heads * dim, config.kv_heads * dim
    out, back = (
        _of_rotated(config, partial(way, head_dim=config.rotated))
        for way in (common.to_halves, common.to_pairs)
    )

    def join(parts: list[Tensor]) -> Tensor:
        heads = [rows.unflatten(0, (-1, dim)) for rows in (out(parts[0]), parts[1])]
        return torch.cat(heads, dim=1).flatten(0, 1)

    def split(both: Tensor) -> tuple[Tensor, Tensor]:
        query, gate = both.unflatten(0, (-1, 2, dim)).unbind(1)
        return back(query.flatten(0, 1)), gate.flatten(0, 1)

    both = (f"{ours}.q.weight", f"{ours}.gate.weight")
    gated = common.Entry(f"{theirs}.q_proj.weight", (2 * queries, d), both, join, split)
    rotated = {"k": ("k_proj", (keys, d)), "q_norm": ("q_norm", (dim,)), "k_norm": ("k_norm", (dim,))}
    return [
        gated,
        common.Entry(f"{theirs}.v_proj.weight", (keys, d), (f"{ours}.v.weight",)),
        common.Entry(f"{theirs}.o_proj.weight", (d, queries), (f"{ours}.out.weight",)),
        *(
            common.Entry.permuted(f"{theirs}.{name}.weight", shape, f"{ours}.{mine}.weight", out, back)
            for mine, (name, shape) in rotated.items()
        ),
    ]


def _of_rotated(config: ModelConfig, way: common.Permute) -> common.Permute:
    """`way` for the rotated features of each head, of rows [heads x H] or [heads x H, D]; the others stay."""

    def permuted(rows: Tensor) -> Tensor:
        heads = rows.unflatten(0, (-1, config.head_dim))
        rotated, rest = heads.split((config.rotated, config.head_dim - config.rotated), dim=1)
        moved = way(rotated.flatten(0, 1)).unflatten(0, (-1, config.rotated))
        return torch.cat((moved, rest), dim=1).flatten(0, 1)

    return permuted


def _linear_entries(linear: LinearAttention, d: int, theirs: str, ours: str) -> list[common.Entry]:
    heads = linear.value_heads
    keys, values = linear.key_heads * linear.key_dim, heads * linear.value_dim

    def joined(name: str, **widths: int) -> common.Entry:
        """Several of our maps, key head by key head."""

        def join(parts: list[Tensor]) -> Tensor:
            return torch.cat([rows.unflatten(0, (linear.key_heads, -1)) for rows in parts], dim=1).flatten(
                0, 1
            )

        def split(rows: Tensor) -> list[Tensor]:
            sizes = [width // linear.key_heads for width in widths.values()]
            return [
                part.flatten(0, 1) for part in rows.unflatten(0, (linear.key_heads, -1)).split(sizes, dim=1)
            ]

        mine = tuple(f"{ours}.{part}.weight" for part in widths)
        return common.Entry(f"{theirs}.{name}.weight", (sum(widths.values()), d), mine, join, split)

    taps = common.Entry(
        f"{theirs}.conv1d.weight",
        (2 * keys + values, 1, linear.conv_size),
        tuple(f"{ours}.{part}_conv.weight" for part in ("query", "key", "value")),
        lambda parts: torch.cat(parts).unsqueeze(1),
        lambda tensor: tensor.squeeze(1).split((keys, keys, values)),
    )
    return [
        joined("in_proj_qkvz", query=keys, key=keys, value=values, z=values),
        joined("in_proj_ba", write=heads, forget=heads),
        taps,
        common.Entry(f"{theirs}.A_log", (heads,), (f"{ours}.forgetting.A_log",)),
        common.Entry(f"{theirs}.dt_bias", (heads,), (f"{ours}.forgetting.dt_bias",)),
        common.Entry(f"{theirs}.norm.weight", (linear.value_dim,), (f"{ours}.norm.weight",)),
        common.Entry(f"{theirs}.out_proj.weight", (d, values), (f"{ours}.out.weight",)),
    ]


def to_settings(config: ModelConfig) -> dict[str, Any]:
    """config.json without the entries that all models have; the model has experts with a gated shared one."""
    sparsity, linear = config.sparsity, config.linear_attention
    assert sparsity is not None
    factor = config.rotated / config.head_dim
    if int(config.head_dim * factor) < config.rotated:  # transformers rounds down
        factor = (config.rotated + 0.5) / config.head_dim
    rotary = common.rotary_settings(config)
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
        "shared_expert_intermediate_size": sparsity.shared_dim,
        "num_experts": sparsity.n_experts,
        "num_experts_per_tok": sparsity.top_k,
        "moe_intermediate_size": sparsity.expert_dim,
        "norm_topk_prob": config.renormalise,
        "router_aux_loss_coef": config.load_balance_loss,
        "decoder_sparse_step": config.decoder_sparse_step,
        "mlp_only_layers": list(config.mlp_only_layers),
    }
    if linear is not None:
        settings |= {theirs: getattr(linear, ours) for theirs, ours in _LINEAR.items()}
    return settings


_LINEAR = {
    "linear_num_key_heads": "key_heads",
    "linear_num_value_heads": "value_heads",
    "linear_key_head_dim": "key_dim",
    "linear_value_head_dim": "value_dim",
    "linear_conv_kernel_dim": "conv_size",
}
"""Settings of config.json -> fields of `LinearAttention`."""


def from_settings(described: Mapping[str, Any]) -> ModelConfig:
    """The configuration that a config.json of model type qwen3_next describes; `KeyError` if a setting is missing."""
    fields, rope = common.rotary_fields(described)
    factor = rope.get("partial_rotary_factor") or described.get("partial_rotary_factor") or 0.25
    expert, shared = described["moe_intermediate_size"], described["shared_expert_intermediate_size"]
    if shared < expert or shared % expert:
        raise UserError(
            f"config.json has shared_expert_intermediate_size = {shared}, which is no multiple of "
            f"moe_intermediate_size = {expert}: our shared experts have the width of the others"
        )
    interval = _interval(described)
    if interval > 1:
        sizes = {ours: described[theirs] for theirs, ours in _LINEAR.items()}
        fields |= {"full_attention_interval": interval, "conv_size": sizes.pop("conv_size")}
        fields |= {f"linear_{ours}": size for ours, size in sizes.items()}
    n_experts = described.get("num_local_experts") or described["num_experts"]  # the first since version 5
    if not isinstance(n_experts, int) or n_experts < 1:
        raise UserError(f"config.json has num_experts = {n_experts!r}; it must be at least 1")
    return ModelConfig(
        "qwen3next",
        **fields,
        rotary_dim=int(fields["head_dim"] * factor),
        shared_expert_gate=True,
        n_experts=n_experts,
        n_shared_experts=shared // expert,
        top_k=described["num_experts_per_tok"],
        expert_dim=expert,
        renormalise=described.get("norm_topk_prob", True),
        load_balance_loss=described.get("router_aux_loss_coef", 0.001),
        decoder_sparse_step=described.get("decoder_sparse_step", 1),
        mlp_only_layers=tuple(described.get("mlp_only_layers") or ()),
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
