"""gpt as GPT2LMHeadModel: matrices are stored [in, out]; q, k and v are one matrix."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from danalab.errors import UserError
from danalab.models.config import ModelConfig
from danalab.models.huggingface.common import TensorReader, Weights, require

_MODULES = {
    "attention_norm": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "mlp_norm": "ln_2",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
}
_OUTSIDE = {
    "token_embedding.weight": "transformer.wte.weight",
    "position_embedding.weight": "transformer.wpe.weight",
    "final_norm.weight": "transformer.ln_f.weight",
    "final_norm.bias": "transformer.ln_f.bias",
    "output_head.weight": "lm_head.weight",
}


def to_settings(config: ModelConfig) -> dict[str, Any]:
    """config.json without the entries that all models have."""
    return {
        "model_type": "gpt2",
        "n_positions": config.seq_len,
        "n_embd": config.d_model,
        "n_layer": config.n_layers,
        "n_head": config.n_heads,
        "n_inner": config.mlp_dim,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": config.norm_eps,
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
    }


def to_weights(config: ModelConfig, weights: Mapping[str, Tensor]) -> Weights:
    """Named tensors of `GPT2LMHeadModel` from our state dict."""
    named = {theirs: weights[ours] for ours, theirs in _OUTSIDE.items() if ours in weights}
    for layer in range(config.n_layers):
        for ours, theirs in _MODULES.items():
            for kind in ("weight", "bias"):
                name = f"blocks.{layer}.{ours}.{kind}"
                parts = [name.replace("qkv", part) for part in "qkv"] if "qkv" in ours else [name]
                tensor = torch.cat([weights[part] for part in parts])
                named[f"transformer.h.{layer}.{theirs}.{kind}"] = tensor.T.contiguous() if tensor.ndim > 1 else tensor
    return named


def from_settings(described: Mapping[str, Any]) -> ModelConfig:
    """Our configuration for a config.json."""
    require(described, "activation_function", ("gelu_new", "gelu_pytorch_tanh"), "gelu_new")
    require(described, "scale_attn_weights", (True,), True)
    require(described, "scale_attn_by_inverse_layer_idx", (False,), False)
    require(described, "add_cross_attention", (False,), False)
    width, heads = described["n_embd"], described["n_head"]
    if width % heads:
        raise UserError(f"config.json has n_head = {heads}, which does not divide n_embd = {width}")
    return ModelConfig(
        "gpt",
        width,
        described["n_layer"],
        heads,
        width // heads,
        described.get("n_inner") or 4 * width,
        described["vocab_size"],
        described["n_positions"],
        norm_eps=described.get("layer_norm_epsilon", 1e-5),
        tied_head=described.get("tie_word_embeddings", True),
    )


def from_weights(config: ModelConfig, read: TensorReader) -> Weights:
    """Our state dict from named tensors."""
    d, wide = config.d_model, config.mlp_dim
    rows = {"token_embedding.weight": config.vocab_size, "position_embedding.weight": config.seq_len,
            "output_head.weight": config.vocab_size}  # fmt: skip
    ours_by_name = {
        ours: read(theirs, *((rows[ours], d) if ours in rows else (d,)))
        for ours, theirs in _OUTSIDE.items()
        if ours != "output_head.weight" or not config.tied
    }
    sizes = {"attention.qkv": (d, 3 * d), "attention.out": (d, d), "mlp.up": (d, wide), "mlp.down": (wide, d)}
    for layer in range(config.n_layers):
        for ours, theirs in _MODULES.items():
            for kind in ("weight", "bias"):
                shape = sizes.get(ours, (d,))
                tensor = read(f"transformer.h.{layer}.{theirs}.{kind}", *(shape if kind == "weight" else shape[-1:]))
                tensor = tensor.T if tensor.ndim > 1 else tensor
                name = f"blocks.{layer}.{ours}.{kind}"
                if "qkv" in ours:
                    ours_by_name |= {
                        name.replace("qkv", part): rows for part, rows in zip("qkv", tensor.split(d), strict=True)
                    }
                else:
                    ours_by_name[name] = tensor
    return ours_by_name
