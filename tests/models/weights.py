"""Weights that hide nothing."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from danalab.models import ModelConfig, build_model
from danalab.models.canonical import canonical_name
from danalab.models.decoder import Decoder


def random_model(config: ModelConfig, spread: float = 0.3) -> Decoder:
    """A model with weights of all kinds random: fresh gains and biases would hide a wrong order."""
    model = build_model(config)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(spread * torch.randn(parameter.shape, generator=draw))
    return model


def canonical_arrays(model: Decoder, of: Callable[[Tensor], Tensor] = Tensor.detach) -> dict[str, Tensor]:
    """`of(parameter)` for every parameter under its canonical name; `of=lambda p: p.grad` gives the gradients.

    Queries, keys and values are separate (`attention.q`, `.k`, `.v`).
    """
    arrays = {canonical_name(name): of(parameter) for name, parameter in model.named_parameters()}
    for name in [name for name in arrays if name.endswith(".attention.gate.weight")]:
        gate, query_name = arrays.pop(name), name.replace(".gate.", ".q.")
        heads = [rows.unflatten(0, (-1, model.config.head_dim)) for rows in (arrays[query_name], gate)]
        arrays[query_name] = torch.stack(heads, dim=1).flatten(0, 2)
    return arrays
