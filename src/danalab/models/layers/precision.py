"""Precision of products: keeping autocast away from exact arithmetic, and float32 products by oneDNN on CPUs.

MKL, torch's default library, uses AVX-512 on Intel's processors only; on AMD's with AVX-512 oneDNN multiplies float32
twice as fast. torch gives float32 products to oneDNN where they *may* be computed in bfloat16, which oneDNN does with
AMX alone. So this is for processors with AVX-512 and without AMX, and a product is compared with float64 before it is
relied on.
"""

import contextlib
import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor

from danalab.native_library import processor

log = logging.getLogger(__name__)
_SWITCH = "bf16"  # the setting of torch that gives float32 products to oneDNN
LARGEST_ERROR = 1e-5
"""Largest error of a product, relative to its norm: float32 has about 1e-7, bfloat16 2e-3."""


def is_autocast(device: torch.device) -> bool:
    """Whether autocast is on for a device; the meta device does not support it."""
    return device.type != "meta" and torch.is_autocast_enabled(device.type)


def is_plain_inference() -> bool:
    """Whether nothing is differentiated or compiled: custom operations, whose call imports the compiler, are not
    needed."""
    return not (torch.is_grad_enabled() or torch.compiler.is_compiling())


def full_precision(x: Tensor) -> AbstractContextManager[object]:
    """No autocast on the device of `x`: results keep the dtype of their arguments."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


@contextlib.contextmanager
def onednn_products(*, enabled: bool = True) -> Iterator[bool]:
    """Give this process's float32 products on CPUs to oneDNN within the context, where it is faster and exact.

    Yields True where oneDNN is used. `enabled=False` leaves torch as it is.
    """
    before = _matmul().fp32_precision
    on = enabled and _is_faster()
    try:
        if on:
            _matmul().fp32_precision = _SWITCH
            if _error() > LARGEST_ERROR:
                log.warning("oneDNN does not multiply in float32 here; products are left to torch's default library")
                on, _matmul().fp32_precision = False, before
        yield on
    finally:
        _matmul().fp32_precision = before


def uses_onednn(x: Tensor) -> bool:
    """Whether products of tensors like `x` are oneDNN's, batched ones included."""
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    if x.dtype == torch.float32:
        return _matmul().fp32_precision == _SWITCH
    return x.dtype == torch.bfloat16 and "avx512_bf16" in processor()


@cache
def _is_faster() -> bool:
    words = set(processor().split())
    amx = any(word.startswith("amx") for word in words)
    return {"AuthenticAMD", "avx512f"} <= words and not amx and torch.backends.mkldnn.is_available()


def _matmul() -> Any:
    return torch.backends.mkldnn.matmul  # pyright: ignore[reportAttributeAccessIssue]


def _error() -> float:
    draw = torch.Generator().manual_seed(0)
    a, b = torch.randn(128, 512, generator=draw), torch.randn(512, 256, generator=draw)
    exact = a.double() @ b.double()
    return float((a @ b - exact).norm() / exact.norm())
