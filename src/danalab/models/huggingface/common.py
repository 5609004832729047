"""Helpers to read and write the names and layouts of `transformers`, for all models. H: head dimension."""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from danalab.errors import UserError
from danalab.models.config import ModelConfig

Weights = dict[str, Tensor]


def to_halves(rows: Tensor, head_dim: int) -> Tensor:
    """Features of each head from adjacent pairs (2j, 2j + 1) to halves (j, j + H/2); [heads x H] or [heads x H, D]."""
    return rows.unflatten(0, (-1, head_dim // 2, 2)).transpose(1, 2).flatten(0, 2)


def to_pairs(rows: Tensor, head_dim: int) -> Tensor:
    """The inverse of `to_halves`."""
    return rows.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2).flatten(0, 2)


def rotary_settings(config: ModelConfig) -> dict[str, Any]:
    """config.json entries of every model with rotary embeddings and a gated MLP."""
    return {
        "hidden_size": config.d_model,
        "intermediate_size": config.mlp_dim,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.seq_len,
        "rms_norm_eps": config.norm_eps,
        # Before version 5 transformers reads the first, from then on the second.
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "attention_bias": False,
        "attention_dropout": 0.0,
    }


def require(described: Mapping[str, Any], name: str, allowed: tuple[Any, ...], default: Any) -> None:
    """Check that a setting of config.json is one that our models support."""
    if (value := described.get(name, default)) not in allowed:
        raise UserError(f"config.json has {name} = {value!r}, which our models do not support; only {allowed[0]!r} can "
                        "be imported")  # fmt: skip


def canonical_names(weights: Mapping[str, Tensor], prefix: str) -> Weights:
    """Names with the prefix that files of a headless model lack; without tables that follow from the configuration."""
    tables = re.compile(r"\.attn\.(masked_)?bias$|\.rotary_emb\.inv_freq$|^\.mtp\.")
    return {
        name if name.startswith((prefix, "lm_head.")) else prefix + name: tensor
        for name, tensor in weights.items()
        if not tables.search(f".{name}")
    }


class TensorReader:
    """Named tensors, each read once, with its expected shape."""

    def __init__(self, weights: Weights):
        self._left = dict(weights)

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def __call__(self, name: str, *shape: int) -> Tensor:
        if name not in self._left:
            raise UserError(f"the files have no weight '{name}', which config.json requires")
        tensor = self._left.pop(name)
        if tuple(tensor.shape) != shape:
            raise UserError(f"weight '{name}' has shape {list(tensor.shape)}, config.json requires {list(shape)}")
        if not tensor.is_floating_point():
            kind = str(tensor.dtype).removeprefix("torch.")
            raise UserError(f"weight '{name}' is of {kind}: quantised models cannot be imported; use the original")
        return tensor

    def finish(self) -> None:
        """Raises `UserError` if a tensor was not read."""
        if self._left:
            raise UserError(f"the files have {len(self._left)} weights that config.json does not describe, "
                            f"'{next(iter(self._left))}' first")  # fmt: skip
