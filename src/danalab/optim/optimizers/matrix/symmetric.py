"""Symmetric products, X X^T and products of polynomials in it: what is above the diagonal is copied from below it.

An operator of torch, which its counter of FLOPs counts as m (m + 1) k for [m, k] [k, m] from 256 rows on: the entries
that are needed.
CUDA devices have a Triton kernel, which computes the tiles on and below the diagonal. CPUs compute panels of columns
where this is faster: not of small matrices, and not in 16 bits, where one whole product takes a third of the time
(`bench/muon.py`).
"""

import functools
import logging
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from danalab.errors import first_line
from danalab.optim.products import HALVED, symmetric_entries
from danalab.optim.step.backends import triton_step

log = logging.getLogger(__name__)

_PANEL = 96  # columns of one panel
_TILE, _DEPTH = 64, 32  # of the Triton kernel
LARGEST_ERROR = 2e-2
"""Between kernel and torch's product in 16 bits, relative to the largest entry."""


def symmetric_product(left: Tensor, right: Tensor, out: Tensor) -> None:
    """out = left right, [matrices, m, k] [matrices, k, m], which must be symmetric."""
    if _operator is None:  # in an exported file
        torch.bmm(left, right, out=out)
    else:
        _operator(left, right, out)


def _product(left: Tensor, right: Tensor, out: Tensor) -> None:
    size = out.shape[-1]
    if out.device.type == "cuda" and size >= HALVED and _kernel_agrees(out.dtype, out.device.index):
        launch(left, right, out)
    elif out.device.type != "cpu" or size < 4 * _PANEL or out.dtype.itemsize < 4:
        torch.bmm(left, right, out=out)
    else:
        for start in range(0, size, _PANEL):
            stop = min(start + _PANEL, size)
            torch.bmm(left[:, start:], right[:, :, start:stop], out=out[:, start:, start:stop])
            out[:, start:stop, stop:].copy_(out[:, stop:, start:stop].mT)


_LIBRARY = torch.library.Library("danalab", "FRAGMENT")
_LIBRARY.define("symmetric_product(Tensor left, Tensor right, Tensor(a!) out) -> ()")
_LIBRARY.impl("symmetric_product", _product, "CompositeExplicitAutograd")
_operator: Any = torch.ops.danalab.symmetric_product.default


@register_flop_formula(torch.ops.danalab.symmetric_product)
def _flops(left: Any, right: Any, out: Any, out_shape: Any = None) -> int:
    matrices, size, inner = left
    return matrices * symmetric_entries(size) * inner


def launch(left: Tensor, right: Tensor, out: Tensor) -> None:
    """The product by the Triton kernel; `out` is contiguous, in 16 or 32 bits."""
    tiles = -(-out.shape[-1] // _TILE)
    grid = (tiles * (tiles + 1) // 2, len(out))
    triton_step._kernel().symmetric_product[grid](
        left, right, out, out.shape[-1], left.shape[-1], *left.stride(), *right.stride(), TILE=_TILE, DEPTH=_DEPTH
    )


@functools.cache
def _kernel_agrees(dtype: torch.dtype, device: int) -> bool:
    """Whether the kernel computes on this device what torch does; logs where it does not."""
    if dtype.itemsize > 2 or not triton_step.is_installed():
        return False
    x = torch.randn(2, 200, 72, dtype=dtype, device=f"cuda:{device}")
    out = x.new_empty(2, 200, 200)
    try:
        launch(x, x.mT, out)
        error = float((out - x @ x.mT).abs().max() / out.abs().max())
        reason = f"it differs from torch's product by {error:.1e}"
    except Exception as failure:  # Triton compiles and loads: what it raises is not documented
        error, reason = float("inf"), first_line(failure)
    if error <= LARGEST_ERROR:
        return True
    log.warning("the symmetric product in Triton is not used, steps will take longer: %s", reason)
    return False
