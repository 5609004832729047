"""Names and layouts of `transformers`: a table of entries describes a model's tensors for both directions.

    Entry   one tensor of theirs  <->  the weights of ours that it holds, permuted, transposed or joined

H: head dimension.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from danalab.errors import UserError
from danalab.models.canonical import Weights, require_shapes
from danalab.models.config import ModelConfig

Permute = Callable[[Tensor], Tensor]


class Entry(NamedTuple):
    """One tensor of `transformers`."""

    theirs: str
    shape: tuple[int, ...]
    ours: tuple[str | tuple[str, int], ...]
    """Names of our weights in it; (name, index): one matrix of a stack, in ascending order."""
    join: Callable[[list[Tensor]], Tensor] = lambda parts: parts[0] if len(parts) == 1 else torch.cat(parts)
    """Makes their tensor from ours."""
    split: Callable[[Tensor], Sequence[Tensor]] = lambda tensor: (tensor,)
    """The inverse."""

    @classmethod
    def permuted(cls, theirs: str, shape: tuple[int, ...], ours: str, out: Permute, back: Permute) -> "Entry":
        """One of our weights with its rows in another order."""
        return cls(theirs, shape, (ours,), lambda parts: out(parts[0]), lambda tensor: (back(tensor),))


def to_weights(entries: Iterable[Entry], weights: Mapping[str, Tensor]) -> Weights:
    """The tensors of `transformers` from our state dict."""

    def of(name: str | tuple[str, int]) -> Tensor:
        return weights[name] if isinstance(name, str) else weights[name[0]][name[1]]

    return {entry.theirs: entry.join([of(name) for name in entry.ours]).contiguous() for entry in entries}


def from_weights(entries: Iterable[Entry], weights: Mapping[str, Tensor]) -> Weights:
    """Our state dict from the tensors of `transformers`, of which all must be there, whole and of a fitting shape."""
    entries = list(entries)
    require_shapes(weights, {entry.theirs: entry.shape for entry in entries})
    ours, stacks = Weights(), dict[str, list[Tensor]]()
    for entry in entries:
        tensor = weights[entry.theirs]
        if not tensor.is_floating_point():
            kind = str(tensor.dtype).removeprefix("torch.")
            raise UserError(
                f"weight '{entry.theirs}' is of {kind}: quantised models cannot be imported; use the original"
            )
        for name, part in zip(entry.ours, entry.split(tensor), strict=True):
            if isinstance(name, str):
                ours[name] = part
            else:
                stacks.setdefault(name[0], []).append(part)
    return ours | {name: torch.stack(matrices) for name, matrices in stacks.items()}


def to_halves(rows: Tensor, head_dim: int) -> Tensor:
    """Features of each head from adjacent pairs (2j, 2j + 1) to halves (j, j + H/2); [heads x H] or [heads x H, D]."""
    return rows.unflatten(0, (-1, head_dim // 2, 2)).transpose(1, 2).flatten(0, 2)


def to_pairs(rows: Tensor, head_dim: int) -> Tensor:
    """The inverse of `to_halves`."""
    return rows.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2).flatten(0, 2)


def outer_entries(config: ModelConfig) -> list[Entry]:
    """Embedding, last norm and head of a model with rotary embeddings."""
    table = config.vocab_size, config.d_model
    named = [
        ("token_embedding", "model.embed_tokens", table),
        ("final_norm", "model.norm", (config.d_model,)),
    ]
    named += [] if config.choice("tied_head") else [("output_head", "lm_head", table)]
    return [Entry(f"{theirs}.weight", shape, (f"{ours}.weight",)) for ours, theirs, shape in named]


def mlp_entries(theirs: str, ours: str, d: int, wide: int, expert: int | None = None) -> list[Entry]:
    """Gate, up and down; `expert`: a matrix of our stacks."""
    entries = []
    for part in ("gate", "up", "down"):
        weight = f"{ours}.{part}.weight"
        key = weight if expert is None else (weight, expert)
        shape = (d, wide) if part == "down" else (wide, d)
        entries.append(Entry(f"{theirs}.{part}_proj.weight", shape, (key,)))
    return entries


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


def rotary_fields(described: Mapping[str, Any]) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """The inverse of `rotary_settings`: fields of `ModelConfig`, and config.json's settings of the rotation."""
    require(described, "attention_bias", (False,), False)
    require(described, "hidden_act", ("silu",), "silu")
    rope = described.get("rope_parameters") or described.get("rope_scaling") or {}
    require(rope, "rope_type", ("default",), rope.get("type", "default"))
    heads, keys = described["num_attention_heads"], described.get("num_key_value_heads")
    fields = {
        "d_model": described["hidden_size"],
        "n_layers": described["num_hidden_layers"],
        "n_heads": heads,
        "head_dim": described.get("head_dim") or described["hidden_size"] // heads,
        "mlp_dim": described["intermediate_size"],
        "vocab_size": described["vocab_size"],
        "seq_len": described["max_position_embeddings"],
        "norm_eps": described.get("rms_norm_eps", 1e-6),
        "n_kv_heads": None if keys == heads else keys,
        "rope_theta": float(rope.get("rope_theta") or described.get("rope_theta") or 10000.0),
        "tied_head": described.get("tie_word_embeddings", False),
    }
    return fields, rope


def require(described: Mapping[str, Any], name: str, allowed: tuple[Any, ...], default: Any) -> None:
    """Check that a setting of config.json is one that our models support."""
    if (value := described.get(name, default)) not in allowed:
        raise UserError(
            f"config.json has {name} = {value!r}, which our models do not support; only {allowed[0]!r} can be imported"
        )


def published_names(weights: Mapping[str, Tensor], prefix: str) -> Weights:
    """Tensors by the names of published files: with the prefix that a headless model lacks, one matrix an expert where
    version 5 of the library has stacks, without tables that follow from the configuration."""
    tables = re.compile(r"\.attn\.(masked_)?bias$|\.rotary_emb\.inv_freq$|^\.mtp\.")
    named: Weights = {}
    for name, tensor in weights.items():
        if tables.search(f".{name}"):
            continue
        name = name if name.startswith((prefix, "lm_head.")) else prefix + name
        stack, _, part = name.rpartition(".")
        if part == "gate_up_proj":
            for e, matrix in enumerate(tensor):
                halves = matrix.chunk(2)
                named |= {
                    f"{stack}.{e}.{half}_proj.weight": rows
                    for half, rows in zip(("gate", "up"), halves, strict=True)
                }
        elif part == "down_proj":
            named |= {f"{stack}.{e}.down_proj.weight": matrix for e, matrix in enumerate(tensor)}
        else:
            named[name] = tensor
    return named
