"""Causal convolution of long sequences by the FFT, in O(T log T).

    y_d(t) = sum_{tau=0}^{t} k_d(tau) u_d(t - tau)          U = rfft(u, N), K = rfft(k, N), y = irfft(U K, N)[:T]

A product of transforms is a *circular* convolution: what runs over the end of N comes back at the start, where it would
show the past to be made of the future. Sequence and kernel are therefore padded with zeros to N >= 2T - 1.

The work is done in blocks of a few channels that stay in the processor's cache from the first transform to the last:
time is lost by waiting for memory, not by arithmetic. A block is laid out channel by channel, as transforms want it.

Shapes: B batch, T tokens, D channels; N length of the transforms, F = N / 2 + 1 frequencies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK = {"cpu": 2**19, "cuda": 2**27}
"""Numbers that a block has after padding, about, by device (others: as the CPU); on GPUs a bound of memory."""
LEAST_CHANNELS = 16
"""Of a block: as many as a line of the cache holds, which is read at once."""


_ODD = sorted(3**b * 5**c for b in range(5) for c in range(5))


def fft_length(length: int) -> int:
    """The least even 2^a 3^b 5^c that is at least 2 `length` - 1: room for a linear convolution of two such sequences.

    A transform of such a length is about as fast, number for number, as one of a power of two.
    """
    least = max(2 * length - 1, 2)
    return min(odd << max((-(-least // odd) - 1).bit_length(), 1) for odd in _ODD)


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
        room = _Room(u_BTD)
        y_BTD = torch.empty_like(u_BTD, memory_format=torch.contiguous_format)
        for channels in room.channels():
            k_CF = room.spectrum(k_DT[channels])
            for rows in room.rows():
                room.put_back(room.spectrum_of(u_BTD[rows, :, channels]).mul_(k_CF), y_BTD[rows, :, channels])
        return y_BTD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (g_BTD,), (u_BTD, k_DT) = grads, ctx.saved_tensors
        room = _Room(u_BTD)
        wants_u, wants_k = ctx.needs_input_grad
        grad_u = torch.empty_like(u_BTD, memory_format=torch.contiguous_format) if wants_u else None
        grad_k = torch.empty_like(k_DT) if wants_k else None
        for channels in room.channels():
            k_CF = room.spectrum(k_DT[channels]).conj_physical_() if wants_u else None
            sums_CF: Tensor | None = None
            for rows in room.rows():
                g = room.spectrum_of(g_BTD[rows, :, channels])
                if grad_k is not None:
                    part = room.spectrum_of(u_BTD[rows, :, channels]).conj_physical_().mul_(g).sum(0)
                    sums_CF = part if sums_CF is None else sums_CF.add_(part)
                if grad_u is not None and k_CF is not None:
                    room.put_back(g.mul_(k_CF), grad_u[rows, :, channels])
            if grad_k is not None and sums_CF is not None:
                grad_k[channels] = torch.fft.irfft(sums_CF, room.size)[:, : room.length]
        return grad_u, grad_k


class _Room:
    """The blocks of one convolution, and what is done to a block."""

    def __init__(self, u_BTD: Tensor):
        self.batch, self.length, self.dim = u_BTD.shape
        self.size = fft_length(self.length)
        block = BLOCK.get(u_BTD.device.type, BLOCK["cpu"])
        self._channels = min(self.dim, max(LEAST_CHANNELS, block // self.size))
        self._rows = min(self.batch, max(1, block // (self.size * self._channels)))

    def channels(self) -> Iterator[slice]:
        """Of each block."""
        return (slice(start, start + self._channels) for start in range(0, self.dim, self._channels))

    def rows(self) -> Iterator[slice]:
        """Of the batch, in each block."""
        return (slice(start, start + self._rows) for start in range(0, self.batch, self._rows))

    def spectrum(self, k_CT: Tensor) -> Tensor:
        """Transform [C, F] of the padded sequences."""
        return torch.fft.rfft(k_CT, self.size)

    def spectrum_of(self, u_BTC: Tensor) -> Tensor:
        """Transform [B, C, F] of the padded channels."""
        # Turned and padded in one pass; torch would do neither before the transform, which is slow out of order.
        padded = u_BTC.new_zeros(u_BTC.shape[0], u_BTC.shape[2], self.size)
        padded[..., : self.length] = u_BTC.transpose(1, 2)
        return torch.fft.rfft(padded)

    def put_back(self, spectrum_BCF: Tensor, y_BTC: Tensor) -> None:
        """Set `y`, a part of the result, to what has this transform."""
        y_BTC.copy_(torch.fft.irfft(spectrum_BCF, self.size)[..., : self.length].transpose(1, 2))
