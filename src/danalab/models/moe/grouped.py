"""Rows times the matrix of their group, y[r] = W[g(r)] x[r], where rows of a group lie together.

Shapes: R rows, E groups, M columns of x, N rows of a matrix.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

LEAST_ROWS = 32
"""Fewer rows than this are filled up with zeros: for a handful, libraries take other kernels, which round otherwise,
and what an expert says of a token would depend, in its last bit, on how many others it was sent."""


def grouped_linear(x_RM: Tensor, weight_ENM: Tensor, counts_E: Tensor) -> Tensor:
    """[R, N]; differentiable once.

    Args: counts: rows of each group, in order, int64 [E], with the sum R.
    """
    device = x_RM.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    else:
        dtype = torch.promote_types(x_RM.dtype, weight_ENM.dtype)
    return _GroupedLinear.apply(x_RM.to(dtype), weight_ENM.to(dtype), counts_E)  # pyright: ignore[reportReturnType]


class _GroupedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.counts = counts.tolist()
        y = x.new_empty(x.shape[0], weight.shape[1])
        for rows, out, matrix in zip(x.split(ctx.counts), y.split(ctx.counts), weight, strict=True):
            _product(rows, matrix.T, out)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight = ctx.saved_tensors
        g = grads[0].contiguous()
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            grad_x = torch.empty_like(x)
            for rows, out, matrix in zip(g.split(ctx.counts), grad_x.split(ctx.counts), weight, strict=True):
                _product(rows, matrix, out)
        if ctx.needs_input_grad[1]:
            grad_weight = torch.empty_like(weight)
            for rows, seen, out in zip(g.split(ctx.counts), x.split(ctx.counts), grad_weight, strict=True):
                torch.mm(rows.T, seen, out=out)
        return grad_x, grad_weight, None


def _product(rows: Tensor, matrix: Tensor, out: Tensor) -> None:
    n = rows.shape[0]
    if n >= LEAST_ROWS:
        torch.mm(rows, matrix, out=out)
    elif n:
        filled = rows.new_zeros(LEAST_ROWS, rows.shape[1])
        filled[:n] = rows
        out.copy_((filled @ matrix)[:n])
