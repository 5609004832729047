"""Rounding at random: noise by a hash of the step, the parameter and the element, and parameters written with it.

The noise is the same on every replica and after a resume, and kernels.cpp computes the same.
"""

from typing import Any

import torch
from torch import Tensor

from danalab.optim.step.batch import TensorBatch


def store_rounded(p: Tensor, new_p: Tensor, batch: TensorBatch, i: int) -> None:
    """Write `new_p` (in the dtype of the moments) into `p`, parameter i of the batch, rounded once to its dtype."""
    if batch.group["stochastic_rounding"] and p.dtype in (torch.bfloat16, torch.float16):
        new_p = new_p.float()  # a 0-dim parameter is promoted to float64 by step counts on the device
        rounded = stochastic_round(new_p, p.dtype, rounding_seed(batch.count(i), batch.indices[i]))
        new_p = rounded if batch.skip is None else torch.where(batch.skip, p, rounded)
    p.copy_(new_p)


def stochastic_round(x: Tensor, dtype: torch.dtype, seed: Any) -> Tensor:
    """Round float32 `x` to bfloat16 or float16, up or down with probabilities that make the mean exact.

    An update smaller than half a unit in the last place is then not lost: it is made with a small probability.
    Infinities and NaN pass through. Element i (in memory order) gets noise hash(seed, i); see `rounding_seed`.
    """
    dropped = 16 if dtype == torch.bfloat16 else 13  # mantissa bits that the target does not have
    noise = element_noise(x, seed) >> (32 - dropped)
    bits = x.view(torch.int32) + noise.to(torch.int32)
    rounded = (bits & -(1 << dropped)).view(torch.float32)
    if dtype == torch.float16:  # below 2^-14 float16 has a fixed spacing of 2^-24, not a fixed number of bits
        fixed = torch.floor(x * 2.0**24 + noise * 2.0**-dropped) * 2.0**-24
        rounded = torch.where(x.abs() < 2.0**-14, fixed, rounded)
    return torch.where(torch.isfinite(x), rounded, x).to(dtype)


_MASK = 0xFFFFFFFF
_GOLDEN = 0x9E3779B1


def rounding_seed(t: Any, index: int) -> Any:
    """Seed of the noise of parameter `index` in step t: a number, or a 0-dim tensor, as t is."""
    t = t.to(torch.int64) if isinstance(t, Tensor) else int(t)
    return hash32((hash32(t & _MASK) + index * _GOLDEN) & _MASK)


def element_noise(x: Tensor, seed: Any) -> Tensor:
    """32 random bits (int64) for each element of x, whose memory is dense: hash(seed, i) for element i in memory."""
    index = torch.arange(x.numel(), device=x.device, dtype=torch.int64)
    return hash32((index * _GOLDEN + seed) & _MASK).as_strided(x.shape, x.stride())


def hash32(x: Any) -> Any:
    """A hash of 32-bit integers ("lowbias32", C. Wellons): cheap, and unbiased to 0.2 bits."""
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & _MASK
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & _MASK
    return x ^ (x >> 16)
