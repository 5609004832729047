"""Autocast: whether it is on, and how to keep it away from arithmetic that needs full precision."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def is_autocast(device: torch.device) -> bool:
    """Whether autocast is on for a device; the meta device does not support it."""
    return device.type != "meta" and torch.is_autocast_enabled(device.type)


def full_precision(x: Tensor) -> AbstractContextManager[object]:
    """No autocast on the device of `x`: results keep the dtype of their arguments."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)
