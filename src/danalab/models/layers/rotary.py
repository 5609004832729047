"""Rotary position embedding: the feature pair (2j, 2j+1) of position t turns by the angle t * theta^(-2j / head_dim).

Source: Su et al. 2021, arXiv 2104.09864.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

# Shapes: B batch, L length, N heads, H head dimension, P = H / 2 pairs.


class Rotary(nn.Module):
    """The table of (cos, sin), [seq_len, 1, P, 2], float32 (float64 in a float64 model) for all dtypes of weights."""

    table: Tensor

    def __init__(self, seq_len: int, head_dim: int, theta: float):
        super().__init__()
        self.seq_len, self.head_dim, self.theta = seq_len, head_dim, theta
        self.register_buffer("table", torch.empty(seq_len, 1, head_dim // 2, 2), persistent=False)
        self._fill()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Rotary":
        # Every change of device or dtype calls this. Recomputing the table keeps it exact after .double(), float32
        # after .bfloat16(), and correct after a meta model is materialised.
        super()._apply(fn, recurse)
        self._fill()
        return self

    def _fill(self) -> None:
        old = self.table
        dtype = torch.float64 if old.dtype == torch.float64 else torch.float32
        if old.is_meta:
            self.table = old.to(dtype)
            return
        exponents = torch.arange(0, self.head_dim, 2, dtype=torch.float64) / self.head_dim
        angles = torch.arange(self.seq_len, dtype=torch.float64)[:, None] * self.theta**-exponents
        self.table = torch.stack((angles.cos(), angles.sin()), dim=-1).unsqueeze(1).to(old.device, dtype)

    def forward(self, start: int, length: int) -> Tensor:
        """(cos, sin) of the positions `start` to `start + length`: [L, 1, P, 2]."""
        return self.table[start : start + length]

    def at(self, positions: Tensor) -> Tensor:
        """(cos, sin) of any positions [B, L]: [B, L, 1, P, 2]."""
        return self.table[positions]


def rotate(x_BLNH: Tensor, table_L1P2: Tensor) -> Tensor:
    """Turn every pair of features of `x` by its position's angle, in the table's precision; keeps x's dtype.

    The table may have a leading dimension B. Features beyond its pairs stay as they are.
    """
    rotated = 2 * table_L1P2.shape[-2]
    if rotated < x_BLNH.shape[-1]:
        return torch.cat((rotate(x_BLNH[..., :rotated], table_L1P2), x_BLNH[..., rotated:]), dim=-1)
    x = x_BLNH.to(table_L1P2.dtype).unflatten(-1, (-1, 2))
    if torch.compiler.is_compiling():  # inductor has no complex arithmetic, and fuses this form
        (even, odd), (cos, sin) = x.unbind(-1), table_L1P2.unbind(-1)
        rotated_x = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1)
    else:  # eager: one pass forward and one back
        rotated_x = torch.view_as_real(torch.view_as_complex(x) * torch.view_as_complex(table_L1P2))
    return rotated_x.flatten(-2).to(x_BLNH.dtype)
