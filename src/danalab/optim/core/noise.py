"""Noise for rounding at random: a hash of the step, the parameter and the element.

It is the same on every replica and after a resume, and kernels.cpp computes the same.
"""

from typing import Any

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_GOLDEN = 0x9E3779B1


def rounding_seed(t: Any, index: int) -> Any:
    """Seed of the noise of parameter `index` in step t.

    Args:
        t: a number, or a 0-dim tensor; so is the result.
    """
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
