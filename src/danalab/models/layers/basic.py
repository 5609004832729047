"""Linear maps, embeddings and norms with a role (`danalab.models.init`), two MLPs, and dropout.

Norms are over the last dimension, in the wider of the input's and the gain's dtype.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from danalab.models.config import ModelConfig


class Linear(nn.Linear):
    """y = x W^T, or x W^T + b, with W [out_features, in_features]."""

    def __init__(self, in_features: int, out_features: int, role: str = "linear", bias: bool = False):
        super().__init__(in_features, out_features, bias=bias)
        self.role = role

    def reset_parameters(self) -> None:
        """Does nothing: `danalab.models.init` draws all weights."""


class Embedding(nn.Embedding):
    """One vector for each token id, or each position."""

    def __init__(self, rows: int, dim: int, role: str = "embedding"):
        super().__init__(rows, dim)
        self.role = role

    def reset_parameters(self) -> None:
        """Does nothing: `danalab.models.init` draws all weights."""


class GeluMLP(nn.Module):
    """down(gelu(up(x))), with the exact (erf) GELU or its tanh formula."""

    def __init__(self, config: ModelConfig, width: int):
        super().__init__()
        self.up = Linear(config.d_model, width, bias=config.biased)
        self.down = Linear(width, config.d_model, role="residual", bias=config.biased)
        self.approximate = "tanh" if config.architecture.activation == "gelu-tanh" else "none"

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate=self.approximate))


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, config: ModelConfig, width: int):
        super().__init__()
        self.gate = Linear(config.d_model, width)
        self.up = Linear(config.d_model, width)
        self.down = Linear(width, config.d_model, role="residual")

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Dropout(nn.Module):
    """x with each feature set to 0 with `probability`, the others divided by 1 - probability.

    Masks are drawn from torch's generator of the device, which checkpoints save: runs resume exactly.
    """

    def __init__(self, probability: float):
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        active = self.probability > 0 and self.training and torch.is_grad_enabled()
        return F.dropout(x, self.probability) if active else x


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

    def gain(self, dtype: torch.dtype) -> Tensor:
        """The factor of each feature."""
        return self.weight.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        x = _promoted(x, self.weight.dtype)
        return F.rms_norm(x, self.weight.shape, self.gain(x.dtype), self.eps)


class RMSNorm1p(RMSNorm):
    """(1 + weight) * x / sqrt(mean(x^2) + eps): bfloat16 resolves weights near 0 more finely than near 1."""

    role = "zero_centered_gain"

    def __init__(self, dim: int, eps: float):
        super().__init__(dim, eps)
        nn.init.zeros_(self.weight)

    def gain(self, dtype: torch.dtype) -> Tensor:
        return 1 + super().gain(dtype)


def make_norm(config: ModelConfig, dim: int) -> LayerNorm | RMSNorm:
    """The norm that `config` asks for, over `dim` features."""
    if config.norm_kind == "layernorm":
        return LayerNorm(dim, config.norm_eps, config.biased)
    return (RMSNorm1p if config.norm_kind == "rmsnorm-1p" else RMSNorm)(dim, config.norm_eps)


def _promoted(x: Tensor, dtype: torch.dtype) -> Tensor:
    # Under autocast q and k are bfloat16 and gains float32; with sharded weights gains are bfloat16 and the residual
    # stream float32. In both cases normalise (and later rotate) in float32.
    return x.to(torch.promote_types(x.dtype, dtype))
