"""Linear maps, embeddings, norms and short convolutions with a role (`danalab.models.init`), two MLPs, and dropout.

Norms are over the last dimension, in the wider of the input's and the gain's dtype. A short convolution is a causal
filter of each channel: y_t = sum_{lag < size} w_lag x_{t - lag}. Shapes of its input: B batch, T tokens, C channels.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from danalab.models.config import ModelConfig
from danalab.models.shards import assign, local_shard


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


class ShortConvolution(nn.Module):
    """A causal filter for each channel; weight [C, size], the lag 0 last."""

    role = "convolution"

    def __init__(self, channels: int, size: int):
        super().__init__()
        self.size = size
        self.weight = nn.Parameter(torch.empty(channels, size))

    def forward(self, x_BTC: Tensor, past_BPC: Tensor | None = None, starts_BT: Tensor | None = None) -> Tensor:
        """[B, T, C], in the wider dtype of x and the weights.

        Args:
            past: the size - 1 vectors before x, [B, size - 1, C]; None: zeros.
            starts: where each token's document starts in the row, [B, T]; inputs before it count as zeros. None: the
                row is one document.
        """
        weight, length = local_shard(self.weight), x_BTC.shape[1]
        if past_BPC is None:
            past_BPC = x_BTC.new_zeros(x_BTC.shape[0], self.size - 1, x_BTC.shape[2])
        x = torch.cat((past_BPC, x_BTC), dim=1).to(torch.promote_types(x_BTC.dtype, weight.dtype))
        weight = weight.to(x.dtype)
        position = torch.arange(length, device=x.device)
        # Shifted copies: faster on CPUs than a grouped conv1d, and the compiler fuses them.
        y = x[:, self.size - 1 :] * weight[:, -1]
        for lag in range(1, self.size):
            first = self.size - 1 - lag
            lagged = x[:, first : first + length]
            if starts_BT is not None:
                lagged = lagged.masked_fill((position - starts_BT < lag).unsqueeze(-1), 0.0)
            y = torch.addcmul(y, lagged, weight[:, first])
        return y

    def draw(self, generator: torch.Generator) -> None:
        """Normal, in place, with variance 1 / size, which preserves the variance of white noise."""
        values = torch.empty(self.weight.shape, dtype=torch.float32)
        with torch.no_grad():
            assign(self.weight, values.normal_(0.0, self.size**-0.5, generator=generator))
