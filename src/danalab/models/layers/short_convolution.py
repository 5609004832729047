"""A short causal convolution of each channel: y_t = sum_{lag < size} w_lag x_{t - lag}.

Shapes: B batch, T tokens, C channels.
"""

import torch
from torch import Tensor, nn

from danalab.models.parallel.shards import assign, local_shard


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
        place = torch.arange(length, device=x.device)
        # Shifted copies: faster on CPUs than a grouped conv1d, and the compiler fuses them.
        y = x[:, self.size - 1 :] * weight[:, -1]
        for lag in range(1, self.size):
            first = self.size - 1 - lag
            lagged = x[:, first : first + length]
            if starts_BT is not None:
                lagged = lagged.masked_fill((place - starts_BT < lag).unsqueeze(-1), 0.0)
            y = torch.addcmul(y, lagged, weight[:, first])
        return y

    def draw(self, generator: torch.Generator) -> None:
        """Normal, in place, with variance 1 / size, which preserves the variance of white noise."""
        values = torch.empty(self.weight.shape, dtype=torch.float32)
        with torch.no_grad():
            assign(self.weight, values.normal_(0.0, self.size**-0.5, generator=generator))
