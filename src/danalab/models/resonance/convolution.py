"""Causal convolution of long sequences by the FFT, in O(T log T).

    y_d(t) = sum_{tau=0}^{t} k_d(tau) u_d(t - tau)          U = rfft(u, N), K = rfft(k, N), y = irfft(U K, N)[:T]

A product of transforms is a *circular* convolution: what runs over the end of N comes back at the start, where it would
show the past to be made of the future. Sequence and kernel are therefore padded with zeros to N >= 2T - 1.

Shapes: B batch, T tokens, D channels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def fft_length(length: int) -> int:
    """The power of two that is at least 2 `length` - 1: room for a linear convolution of two sequences of `length`."""
    return 1 << (2 * length - 2).bit_length()


def causal_convolution(u_BTD: Tensor, k_DT: Tensor) -> Tensor:
    """y [B, T, D], differentiable once; `u` and `k` in one dtype, float32 or float64."""
    return _Convolution.apply(u_BTD, k_DT)  # pyright: ignore[reportReturnType] - apply is typed loosely


class _Convolution(torch.autograd.Function):
    """Keeps u and k, not their transforms, which are twice as large; its backward needs no complex transform.

    du(s) = sum_t g(t) k(t - s) and dk(tau) = sum_t g(t) u(t - tau) are correlations: products with a conjugate.
    """

    @staticmethod
    def forward(ctx: Any, u_BTD: Tensor, k_DT: Tensor) -> Tensor:
        ctx.save_for_backward(u_BTD, k_DT)
        size = fft_length(u_BTD.shape[1])
        return _back(_spectrum(u_BTD, size).mul_(torch.fft.rfft(k_DT, size)), size, u_BTD.shape[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        u_BTD, k_DT = ctx.saved_tensors
        length, size = u_BTD.shape[1], fft_length(u_BTD.shape[1])
        g = _spectrum(grads[0], size)
        grad_u = grad_k = None
        if ctx.needs_input_grad[1]:
            g_u = (_spectrum(u_BTD, size).conj() * g).sum(0)
            grad_k = torch.fft.irfft(g_u, size)[..., :length]
        if ctx.needs_input_grad[0]:
            grad_u = _back(g.mul_(torch.fft.rfft(k_DT, size).conj()), size, length)
        return grad_u, grad_k


def _spectrum(x_BTD: Tensor, size: int) -> Tensor:
    return torch.fft.rfft(x_BTD.transpose(1, 2), size)


def _back(spectrum: Tensor, size: int, length: int) -> Tensor:
    return torch.fft.irfft(spectrum, size)[..., :length].transpose(1, 2)
