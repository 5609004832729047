"""The two MLPs: down(gelu(up(x))), and the gated down(silu(gate(x)) * up(x)) of Shazeer 2020 (arXiv 2002.05202)."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from danalab.models.config import ModelConfig
from danalab.models.layers.basic import Linear


class GeluMLP(nn.Module):
    """down(gelu(up(x))), with the exact (erf) GELU or its tanh formula; `width` None: mlp_dim."""

    def __init__(self, config: ModelConfig, approximate: Literal["none", "tanh"] = "none", width: int | None = None):
        super().__init__()
        width = config.mlp_dim if width is None else width
        self.up = Linear(config.d_model, width, bias=config.biased)
        self.down = Linear(width, config.d_model, role="residual", bias=config.biased)
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate=self.approximate))


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)); `width` None: mlp_dim."""

    def __init__(self, config: ModelConfig, width: int | None = None):
        super().__init__()
        width = config.mlp_dim if width is None else width
        self.gate = Linear(config.d_model, width)
        self.up = Linear(config.d_model, width)
        self.down = Linear(width, config.d_model, role="residual")

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))
