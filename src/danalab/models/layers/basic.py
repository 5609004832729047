"""Linear maps, embeddings and norms that know their role, which decides initialisation, weight decay and sharding.

Roles: "embedding" (a table of token vectors), "linear" (reads the residual stream), "residual" (writes to it),
"expert" and "expert_residual" (likewise, a matrix for each expert), "router" (its few rows choose or weigh experts),
"head" (vocabulary scores), "gain" (the vector of a norm), "bias" (of a map or norm), "tied" (a table that is the
head, too), "oscillator" (damping, frequency, magnitude and phase of the resonance model), "excess" (a norm's gain less
1), "convolution" (taps of a filter for each channel), "decay" (how fast each head of a delta rule forgets).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from danalab.models.config import ModelConfig

KIND_OF_ROLE = {
    "embedding": "embedding",
    "tied": "embedding",
    "linear": "matrix",
    "residual": "matrix",
    "expert": "experts",
    "expert_residual": "experts",
    "router": "router",
    "head": "head",
    "gain": "vector",
    "bias": "vector",
    "oscillator": "vector",
    "excess": "vector",
    "convolution": "vector",
    "decay": "vector",
}


class Linear(nn.Linear):
    """y = x W^T, or x W^T + b, with W [out_features, in_features]."""

    def __init__(self, in_features: int, out_features: int, role: str = "linear", bias: bool = False):
        super().__init__(in_features, out_features, bias=bias)
        self.role = role

    def reset_parameters(self) -> None:
        """Nothing: `danalab.models.init` draws all weights in one place."""


class Embedding(nn.Embedding):
    """A table of one vector for each token id, or each position."""

    def __init__(self, rows: int, dim: int, role: str = "embedding"):
        super().__init__(rows, dim)
        self.role = role

    def reset_parameters(self) -> None:
        """Nothing: `danalab.models.init` draws all weights in one place."""


class LayerNorm(nn.Module):
    """weight * (x - mean) / sqrt(variance + eps) over the last dimension, and + bias where there is one."""

    role = "gain"

    def __init__(self, dim: int, eps: float, bias: bool = False):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim)) if bias else None
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = _at_least(x, self.weight.dtype)
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.layer_norm(x, self.weight.shape, self.weight.to(x.dtype), bias, self.eps)


class RMSNorm(nn.Module):
    """weight * x / sqrt(mean(x^2) + eps) over the last dimension."""

    role = "gain"

    def __init__(self, dim: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = _at_least(x, self.weight.dtype)
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


class RMSNorm1p(nn.Module):
    """(1 + weight) * x / sqrt(mean(x^2) + eps) over the last dimension: bfloat16 weights near 0 are finer than at 1."""

    role = "excess"

    def __init__(self, dim: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = _at_least(x, self.weight.dtype)
        return F.rms_norm(x, self.weight.shape, 1 + self.weight.to(x.dtype), self.eps)


def make_norm(config: ModelConfig, dim: int) -> LayerNorm | RMSNorm | RMSNorm1p:
    """The norm that `config` asks for, over `dim` features."""
    if config.norm_kind == "layernorm":
        return LayerNorm(dim, config.norm_eps, config.biased)
    return (RMSNorm1p if config.norm_kind == "rmsnorm-1p" else RMSNorm)(dim, config.norm_eps)


def own_part(weight: Tensor) -> Tensor:
    """This rank's part of a weight that is shared out among ranks; any other weight as it is."""
    return weight.to_local() if isinstance(weight, DTensor) else weight


def _at_least(x: Tensor, dtype: torch.dtype) -> Tensor:
    # Under autocast q and k arrive in bfloat16 while gains are float32; with sharded weights the gains are bfloat16
    # while the residual stream is float32. Either way: normalise (and later rotate) in float32.
    return x.to(torch.promote_types(x.dtype, dtype))
