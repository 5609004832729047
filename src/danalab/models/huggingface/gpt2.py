"""gpt as GPT2LMHeadModel: matrices are stored [in, out]; q, k and v are one matrix."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from danalab.models.config import ModelConfig
from danalab.models.huggingface.common import Entry, require


def entries(config: ModelConfig) -> list[Entry]:
    """The tensors of `GPT2LMHeadModel`."""
    d, wide = config.d_model, config.mlp_dim
    outside = {
        "token_embedding.weight": ("wte.weight", (config.vocab_size, d)),
        "position_embedding.weight": ("wpe.weight", (config.seq_len, d)),
        "final_norm.weight": ("ln_f.weight", (d,)),
        "final_norm.bias": ("ln_f.bias", (d,)),
    }
    modules = {
        "attention_norm": ("ln_1", (d,)),
        "attention.qkv": ("attn.c_attn", (d, 3 * d)),
        "attention.out": ("attn.c_proj", (d, d)),
        "mlp_norm": ("ln_2", (d,)),
        "mlp.up": ("mlp.c_fc", (d, wide)),
        "mlp.down": ("mlp.c_proj", (wide, d)),
    }
    table = [Entry(f"transformer.{theirs}", shape, (ours,)) for ours, (theirs, shape) in outside.items()]
    if not config.choice("tied_head"):
        table.append(Entry("lm_head.weight", (config.vocab_size, d), ("output_head.weight",)))
    for layer in range(config.n_layers):
        for ours, (theirs, shape) in modules.items():
            for kind in ("weight", "bias"):
                name = f"blocks.{layer}.{ours}.{kind}"
                parts = tuple(name.replace("qkv", part) for part in "qkv") if "qkv" in ours else (name,)
                sizes = shape if kind == "weight" else shape[-1:]
                there = f"transformer.h.{layer}.{theirs}.{kind}"
                table.append(
                    Entry(there, sizes, parts, lambda ours: _turned(torch.cat(ours)), _split_into(len(parts)))
                )
    return table


def _split_into(count: int) -> Callable[[Tensor], Sequence[Tensor]]:
    return lambda tensor: _turned(tensor).chunk(count)


def _turned(tensor: Tensor) -> Tensor:
    return tensor.T if tensor.ndim > 1 else tensor


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
        **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0),
    }


def from_settings(described: Mapping[str, Any]) -> ModelConfig:
    """Our configuration for a config.json."""
    require(described, "activation_function", ("gelu_new", "gelu_pytorch_tanh"), "gelu_new")
    require(described, "scale_attn_weights", (True,), True)
    require(described, "scale_attn_by_inverse_layer_idx", (False,), False)
    require(described, "add_cross_attention", (False,), False)
    width, heads = described["n_embd"], described["n_head"]
    layers, inner = described["n_layer"], described.get("n_inner") or 4 * width
    vocab_size, context = described["vocab_size"], described["n_positions"]
    eps, tied = described.get("layer_norm_epsilon", 1e-5), described.get("tie_word_embeddings", True)
    sizes = (width, layers, heads, width // heads, inner, vocab_size, context)
    return ModelConfig("gpt", *sizes, norm_eps=eps, tied_head=tied)
