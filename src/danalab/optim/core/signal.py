"""How much of a log-time average is signal: what gradients of pure noise would leave in it, and what exceeds that."""

from __future__ import annotations

import torch
from torch import Tensor

from danalab.optim.elementwise.functional import Scalar


def noise_floor(t: Scalar, delta: Scalar) -> Scalar:
    """N(t): mean of (m / r)^2 after t gradients that are independent noise."""
    return delta**2 / ((2 * delta - 1) * t + delta**2)


def signal_share(u: Tensor, floor: Scalar) -> Tensor:
    """w = max(0, 1 - floor / u^2), 0 where u is 0."""
    squares = u * u
    return torch.where(squares > floor, 1 - floor / squares, 0.0)
