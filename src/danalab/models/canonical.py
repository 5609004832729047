"""Weights for other programs, under canonical names, which are independent of ours.

Canonical: `token_embedding`, `layers.i.` + (`attention_norm`, `attention.q`, `attention.k`, `attention.v` or the three
stacked as `attention.qkv`, `attention.q_norm`, `attention.k_norm`, `attention.out`, `mlp_norm`, `mlp.up`, `mlp.gate`,
`mlp.down`), `final_norm`, `output_head`, each with `.weight`. With gated attention `attention.q` holds, head by head,
head_dim query rows and then head_dim gate rows. Ours keep q, k, v and gate apart and call the layers `blocks`.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from danalab.errors import UserError, nearest
from danalab.models.decoder import Decoder
from danalab.models.shards import assign

Weights = dict[str, Tensor]


def load_canonical(model: Decoder, arrays: Mapping[str, Any]) -> None:
    """Set all weights of `model`, in place, from arrays (numpy or torch) under their canonical names.

    Nothing is changed unless every name and every shape fits.

    UserError: a name is missing or unknown, or a shape differs.
    """
    wanted = {name: parameter.shape for name, parameter in model.named_parameters()}
    arrays_of = _ours({name: torch.as_tensor(array) for name, array in arrays.items()}, model)
    known = [canonical_name(name) for name in wanted]
    for name in arrays_of:
        if name not in wanted:
            raise UserError(
                f"weight '{canonical_name(name)}' is not one of this {model.config.arch} model's"
                f"{nearest(canonical_name(name), known)}"
            )
    if missing := [canonical_name(name) for name in wanted if name not in arrays_of]:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UserError(f"weight '{missing[0]}'{more} of the model is missing from the arrays")
    for name, shape in wanted.items():
        if arrays_of[name].shape != shape:
            found = f"has shape {list(arrays_of[name].shape)}, the model needs {list(shape)}"
            raise UserError(f"weight '{canonical_name(name)}' {found}")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            assign(parameter, arrays_of[name])


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
