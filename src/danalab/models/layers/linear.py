"""Linear maps and embedding tables with a role (`danalab.models.init`), the two MLPs, and dropout."""

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
