"""Llama and Qwen3 with experts in the names of `transformers`' Mixtral and Qwen3-MoE, and back.

    llama with experts                            MixtralForCausalLM     every layer sparse, weights renormalised
    qwen3 with experts, without attention gate    Qwen3MoeForCausalLM

Both have one matrix for each expert, as in published files; the stacks of version 5 are read, too. Everything except
the MLP is as in the dense models (`danalab.models.huggingface.llama_qwen`). Shared experts: none.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from danalab.models.config import ModelConfig
from danalab.models.huggingface.common import TensorReader, Weights, require


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
    found: Weights = {}
    for layer in sparsity.layers:
        ours, theirs = f"blocks.{layer}.mlp", f"model.layers.{layer}.{naming.module}"
        found[f"{theirs}.gate.weight"] = weights[f"{ours}.router.map.weight"]
        for part in ("gate", "up", "down"):
            for expert, matrix in enumerate(weights[f"{ours}.experts.{part}.weight"]):
                found[f"{theirs}.experts.{expert}.{getattr(naming, part)}.weight"] = matrix.contiguous()
    return found


def read_experts(config: ModelConfig, read: TensorReader) -> Weights:
    """Our routers and experts from the named tensors of `transformers`."""
    naming, sparsity, d = NAMINGS[config.arch], config.sparsity, config.d_model
    assert sparsity is not None
    count, wide = sparsity.n_experts, sparsity.expert_dim
    found: Weights = {}
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
        found[f"{ours}.router.map.weight"] = read(f"{theirs}.gate.weight", count, d)
        found |= {f"{ours}.experts.{part}.weight": stack for part, stack in parts.items()}
    return found
