"""Weights for other programs, under canonical names, which are independent of ours.

Canonical: `token_embedding`, `layers.i.` + (`attention_norm`, `attention.q`, `attention.k`, `attention.v` or the three
stacked as `attention.qkv`, `attention.q_norm`, `attention.k_norm`, `attention.out`, `mlp_norm`, `mlp.up`, `mlp.gate`,
`mlp.down`), `final_norm`, `output_head`, each with `.weight`. With gated attention `attention.q` holds, head by head,
head_dim query rows and then head_dim gate rows. Ours keep q, k, v and gate apart and call the layers `blocks`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from danalab.errors import UserError
from danalab.models.decoder import Decoder
from danalab.models.shards import assign

Weights = dict[str, Tensor]


def load_canonical(model: Decoder, arrays: Mapping[str, Any]) -> None:
    """Set all weights of `model`, in place, from arrays (numpy or torch) under their canonical names.

    Nothing is changed unless every name and every shape fits.

    UserError: a name is missing or unknown, or a shape differs.
    """
    arrays_of = _ours({name: torch.as_tensor(array) for name, array in arrays.items()}, model)
    found = {canonical_name(name): array for name, array in arrays_of.items()}
    require_shapes(found, {canonical_name(name): weight.shape for name, weight in model.named_parameters()})
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            assign(parameter, arrays_of[name])


def require_shapes(found: Mapping[str, Tensor], wanted: Mapping[str, Sequence[int]]) -> None:
    """Check that the weights of a model are all there, in their shapes, and no others; a UserError names the first."""
    shapes = {name: list(tensor.shape) for name, tensor in found.items()}
    for name in {**wanted, **shapes}:
        has, needs = shapes.get(name, "none"), list(wanted[name]) if name in wanted else "none"
        if has != needs:
            raise UserError(f"weight '{name}' has shape {has}, the model needs {needs}")


def canonical_name(name: str) -> str:
    """The canonical name of one of our parameters."""
    return name.replace("blocks.", "layers.", 1)


def _ours(arrays: dict[str, Tensor], model: Decoder) -> dict[str, Tensor]:
    config, ours = model.config, {}
    for canonical, array in arrays.items():
        name = canonical.replace("layers.", "blocks.", 1)
        if name.endswith(".attention.qkv.weight") and not config.choice("attention_gate"):
            parts = [count * config.head_dim for count in (config.n_heads, config.kv_heads, config.kv_heads)]
            pieces = dict(zip("qkv", _split(canonical, array, parts), strict=True))
        elif name.endswith(".attention.q.weight") and config.choice("attention_gate"):
            _split(canonical, array, [2 * config.n_heads * config.head_dim])
            query, gate = array.unflatten(0, (-1, 2, config.head_dim)).unbind(1)
            pieces = {"q": query.flatten(0, 1), "gate": gate.flatten(0, 1)}
        else:
            ours[name] = array
            continue
        stem = name.removesuffix("qkv.weight").removesuffix("q.weight")
        ours.update({f"{stem}{piece}.weight": rows for piece, rows in pieces.items()})
    return ours


def _split(name: str, array: Tensor, rows: list[int]) -> tuple[Tensor, ...]:
    if array.ndim != 2 or array.shape[0] != sum(rows):
        raise UserError(f"weight '{name}' has shape {list(array.shape)}, the model needs {sum(rows)} rows")
    return array.split(rows)
