"""Arithmetic that autocast must leave alone."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def full_precision(x: Tensor) -> AbstractContextManager[object]:
    """No autocast on the device of `x`: what is computed within keeps the dtype of its arguments."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)  # meta knows no autocast
