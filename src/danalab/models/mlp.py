"""The two MLPs: down(gelu(up(x))), and the gated down(silu(gate(x)) * up(x)) of Shazeer 2020 (arXiv 2002.05202)."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from danalab.models.config import ModelConfig
from danalab.models.layers import Linear


class GeluMLP(nn.Module):
    """down(gelu(up(x))), with the exact (erf) GELU or its tanh formula."""

    def __init__(self, config: ModelConfig, approximate: Literal["none", "tanh"] = "none"):
        super().__init__()
        self.up = Linear(config.d_model, config.mlp_dim, bias=config.biased)
        self.down = Linear(config.mlp_dim, config.d_model, role="residual", bias=config.biased)
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate=self.approximate))


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.gate = Linear(config.d_model, config.mlp_dim)
        self.up = Linear(config.d_model, config.mlp_dim)
        self.down = Linear(config.mlp_dim, config.d_model, role="residual")

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))
