"""Writing a new value into a parameter of a narrower dtype, rounded to nearest or at random."""

from typing import Any

import torch
from torch import Tensor

from danalab.optim.core.batch import Batch
from danalab.optim.core.noise import element_noise, rounding_seed


def store_rounded(p: Tensor, new_p: Tensor, batch: Batch, i: int) -> None:
    """Write `new_p` (in the dtype of the moments) into `p`, parameter i of the batch, rounded once to its dtype."""
    if batch.group["stochastic_rounding"] and p.dtype in (torch.bfloat16, torch.float16):
        new_p = new_p.float()  # a 0-dim parameter is promoted to float64 by step counts on the device
        rounded = stochastic_round(new_p, p.dtype, rounding_seed(batch.count(i), batch.indices[i]))
        new_p = rounded if batch.skip is None else torch.where(batch.skip, p, rounded)
    p.copy_(new_p)


def stochastic_round(x: Tensor, dtype: torch.dtype, seed: Any) -> Tensor:
    """Round float32 `x` to bfloat16 or float16, up or down with probabilities that make the mean exact.

    An update smaller than half a unit in the last place is then not lost: it is made with a small probability.

    Args:
        x: float32, any shape; infinities and NaN pass through.
        seed: see `rounding_seed`; element i (in memory order) gets noise hash(seed, i).
    """
    dropped = 16 if dtype == torch.bfloat16 else 13  # mantissa bits that the target does not have
    noise = element_noise(x, seed) >> (32 - dropped)
    bits = x.view(torch.int32) + noise.to(torch.int32)
    rounded = (bits & -(1 << dropped)).view(torch.float32)
    if dtype == torch.float16:  # below 2^-14 float16 has a fixed spacing of 2^-24, not a fixed number of bits
        fixed = torch.floor(x * 2.0**24 + noise * 2.0**-dropped) * 2.0**-24
        rounded = torch.where(x.abs() < 2.0**-14, fixed, rounded)
    return torch.where(torch.isfinite(x), rounded, x).to(dtype)
