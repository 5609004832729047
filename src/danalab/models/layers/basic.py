"""Linear maps, embeddings and norms with a role (`danalab.models.init`), the MLP, and dropout.

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
        """Nothing: `danalab.models.init` draws all weights, and torch's own would import the compiler for it."""


class Embedding(nn.Embedding):
    """One vector for each token id, or each position."""

    def __init__(self, rows: int, dim: int, role: str = "embedding"):
        super().__init__(rows, dim)
        self.role = role

    def reset_parameters(self) -> None:
        """Nothing: `danalab.models.init` draws all weights, and torch's own would import the compiler for it."""


class MLP(nn.Module):
    """down(gelu(up(x))), with the exact (erf) GELU or its tanh formula; or down(silu(gate(x)) * up(x)) (SwiGLU)."""

    def __init__(self, config: ModelConfig, width: int):
        super().__init__()
        activation = config.architecture.activation
        self.gate = Linear(config.d_model, width) if activation == "swiglu" else None
        self.up = Linear(config.d_model, width, bias=config.architecture.biases)
        self.down = Linear(width, config.d_model, role="residual", bias=config.architecture.biases)
        self.approximate = "tanh" if activation == "gelu-tanh" else "none"

    def forward(self, x: Tensor) -> Tensor:
        up = self.up(x)
        hidden = F.gelu(up, approximate=self.approximate) if self.gate is None else F.silu(self.gate(x)) * up
        return self.down(hidden)


def dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """x with each feature set to 0 with `probability`, the others divided by 1 - probability.

    Masks are drawn from torch's generator of the device, which checkpoints save: runs resume exactly.
    """
    return F.dropout(x, probability) if probability and training and torch.is_grad_enabled() else x


class Norm(nn.Module):
    """A norm by its kind.

    layernorm    weight * (x - mean) / sqrt(variance + eps), and + bias where there is one
    rmsnorm      weight * x / sqrt(mean(x^2) + eps)
    rmsnorm-1p   (1 + weight) * x / sqrt(mean(x^2) + eps): bfloat16 resolves weights near 0 more finely than near 1
    """

    def __init__(self, dim: int, eps: float, kind: str = "rmsnorm", bias: bool = False):
        super().__init__()
        self.eps, self.kind = eps, kind
        self.role = "zero_centered_gain" if kind == "rmsnorm-1p" else "gain"
        self.weight = nn.Parameter(torch.zeros(dim) if kind == "rmsnorm-1p" else torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        # Under autocast q and k are bfloat16 and gains float32; with sharded weights gains are bfloat16 and the
        # residual stream float32. In both cases normalise (and later rotate) in float32.
        x = x.to(torch.promote_types(x.dtype, self.weight.dtype))
        weight = self.weight.to(x.dtype)
        weight = 1 + weight if self.kind == "rmsnorm-1p" else weight
        if self.kind != "layernorm":
            return F.rms_norm(x, weight.shape, weight, self.eps)
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.layer_norm(x, weight.shape, weight, bias, self.eps)


def make_norm(config: ModelConfig, dim: int) -> Norm:
    """The norm that `config` asks for, over `dim` features."""
    return Norm(dim, config.norm_eps, config.choice("norm"), config.architecture.biases)
