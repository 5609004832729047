"""LayerNorm and RMSNorm over the last dimension, in the wider of the input's and the gain's dtype."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from danalab.models.config import ModelConfig


class LayerNorm(nn.Module):
    """weight * (x - mean) / sqrt(variance + eps), and + bias where there is one."""

    role = "gain"

    def __init__(self, dim: int, eps: float, bias: bool = False):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim)) if bias else None
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = _promoted(x, self.weight.dtype)
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.layer_norm(x, self.weight.shape, self.weight.to(x.dtype), bias, self.eps)


class RMSNorm(nn.Module):
    """weight * x / sqrt(mean(x^2) + eps)."""

    role = "gain"

    def __init__(self, dim: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = _promoted(x, self.weight.dtype)
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


class RMSNorm1p(nn.Module):
    """(1 + weight) * x / sqrt(mean(x^2) + eps): bfloat16 resolves weights near 0 more finely than near 1."""

    role = "zero_centered_gain"

    def __init__(self, dim: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = _promoted(x, self.weight.dtype)
        return F.rms_norm(x, self.weight.shape, 1 + self.weight.to(x.dtype), self.eps)


def make_norm(config: ModelConfig, dim: int) -> LayerNorm | RMSNorm | RMSNorm1p:
    """The norm that `config` asks for, over `dim` features."""
    if config.norm_kind == "layernorm":
        return LayerNorm(dim, config.norm_eps, config.biased)
    return (RMSNorm1p if config.norm_kind == "rmsnorm-1p" else RMSNorm)(dim, config.norm_eps)


def _promoted(x: Tensor, dtype: torch.dtype) -> Tensor:
    # Under autocast q and k are bfloat16 and gains float32; with sharded weights gains are bfloat16 and the residual
    # stream float32. In both cases normalise (and later rotate) in float32.
    return x.to(torch.promote_types(x.dtype, dtype))
