"""Precision of products: keeping autocast away from exact arithmetic."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def is_plain_inference() -> bool:
    """Whether nothing is differentiated or compiled: custom operations, whose call imports the compiler, are not
    needed."""
    return not (torch.is_grad_enabled() or torch.compiler.is_compiling())


def full_precision(x: Tensor) -> AbstractContextManager[object]:
    """No autocast on the device of `x`: results keep the dtype of their arguments."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)
