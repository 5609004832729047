"""Names and layouts of `transformers`: a table of entries describes a model's tensors for both directions.

    Entry   one tensor of theirs  <->  the weights of ours that it holds, permuted, transposed or joined

H: head dimension.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from danalab.errors import UserError
from danalab.models.canonical import Weights
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


def from_weights(entries: Iterable[Entry], read: "TensorReader") -> Weights:
    """Our state dict from the tensors of `transformers`."""
    weights: Weights = {}
    stacks: dict[str, list[Tensor]] = {}
    for entry in entries:
        for name, tensor in zip(entry.ours, entry.split(read(entry.theirs, *entry.shape)), strict=True):
            if isinstance(name, str):
                weights[name] = tensor
            else:
                stacks.setdefault(name[0], []).append(tensor)
    return weights | {name: torch.stack(matrices) for name, matrices in stacks.items()}


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
    named += [] if config.tied else [("output_head", "lm_head", table)]
    return [Entry(f"{theirs}.weight", shape, (f"{ours}.weight",)) for ours, theirs, shape in named]


def mlp_entries(
    theirs: str, ours: str, names: Iterable[str], d: int, wide: int, expert: int | None = None
) -> list[Entry]:
    """Gate, up and down, called `names` there; `expert`: a matrix of our stacks."""
    entries = []
    for part, name in zip(("gate", "up", "down"), names, strict=True):
        weight = f"{ours}.{part}.weight"
        key = weight if expert is None else (weight, expert)
        shape = (d, wide) if part == "down" else (wide, d)
        entries.append(Entry(f"{theirs}.{name}.weight", shape, (key,)))
    return entries


def expert_entries(
    config: ModelConfig, layer: int, module: str, names: Iterable[str], read: "TensorReader | None"
) -> list[Entry]:
    """Router and experts of a sparse layer: one matrix per expert, as in published files.

    `module`: name of the layer there; `names`: of gate, up and down. Stacks of version 5 are read, too; their module is
    always `mlp`.
    """
    sparsity, d = config.sparsity, config.d_model
    assert sparsity is not None
    count, wide = sparsity.n_experts, sparsity.expert_dim
    ours, theirs = f"blocks.{layer}.mlp", f"model.layers.{layer}.{module}"
    stacks = f"model.layers.{layer}.mlp.experts"
    if read is not None and f"{stacks}.gate_up_proj" in read:
        theirs = f"model.layers.{layer}.mlp"
        gate, up, down = (f"{ours}.experts.{part}.weight" for part in ("gate", "up", "down"))
        split, shape = (lambda tensor: tensor.split(wide, dim=1)), (count, 2 * wide, d)
        both = Entry(f"{stacks}.gate_up_proj", shape, (gate, up), split=split)
        entries = [both, Entry(f"{stacks}.down_proj", (count, d, wide), (down,))]
    else:
        each = (
            mlp_entries(f"{theirs}.experts.{e}", f"{ours}.experts", names, d, wide, e) for e in range(count)
        )
        entries = list(itertools.chain.from_iterable(each))
    return [Entry(f"{theirs}.gate.weight", (count, d), (f"{ours}.router.map.weight",)), *entries]


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


def layer_settings(config: ModelConfig) -> dict[str, Any]:
    """config.json entries of Qwen's experts, and of the layers that have them."""
    sparsity = config.sparsity
    assert sparsity is not None
    return {
        "num_experts": sparsity.n_experts,
        "num_experts_per_tok": sparsity.top_k,
        "moe_intermediate_size": sparsity.expert_dim,
        "norm_topk_prob": config.renormalise,
        "router_aux_loss_coef": config.load_balance_loss,
        "decoder_sparse_step": config.decoder_sparse_step,
        "mlp_only_layers": list(config.mlp_only_layers),
    }


def layer_fields(described: Mapping[str, Any], *, renormalise: bool) -> dict[str, Any]:
    """The inverse of `layer_settings`. `renormalise`: the class's default."""
    # Version 5 saves it under the first name.
    n_experts = described.get("num_local_experts") or described["num_experts"]
    if not isinstance(n_experts, int) or n_experts < 1:
        raise UserError(f"config.json has num_experts = {n_experts!r}; it must be at least 1")
    return {
        "n_experts": n_experts,
        "top_k": described["num_experts_per_tok"],
        "expert_dim": described["moe_intermediate_size"],
        "renormalise": described.get("norm_topk_prob", renormalise),
        "load_balance_loss": described.get("router_aux_loss_coef", 0.001),
        "decoder_sparse_step": described.get("decoder_sparse_step", 1),
        "mlp_only_layers": tuple(described.get("mlp_only_layers") or ()),
    }


def require(described: Mapping[str, Any], name: str, allowed: tuple[Any, ...], default: Any) -> None:
    """Check that a setting of config.json is one that our models support."""
    if (value := described.get(name, default)) not in allowed:
        raise UserError(
            f"config.json has {name} = {value!r}, which our models do not support; only {allowed[0]!r} can be imported"
        )


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
            raise UserError(
                f"weight '{name}' has shape {list(tensor.shape)}, config.json requires {list(shape)}"
            )
        if not tensor.is_floating_point():
            kind = str(tensor.dtype).removeprefix("torch.")
            raise UserError(
                f"weight '{name}' is of {kind}: quantised models cannot be imported; use the original"
            )
        return tensor

    def finish(self) -> None:
        """Raises `UserError` if a tensor was not read."""
        if self._left:
            raise UserError(
                f"the files have {len(self._left)} weights that config.json does not describe, "
                f"'{next(iter(self._left))}' first"
            )
