"""The two MLPs: down(gelu(up(x))), and the gated down(silu(gate(x)) * up(x)) of Shazeer 2020 (arXiv 2002.05202)."""

from torch import Tensor, nn
from torch.nn import functional as F

from danalab.models.config import ModelConfig
from danalab.models.layers.linear import Linear


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
