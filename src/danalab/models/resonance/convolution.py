"""Causal convolution of long sequences by the FFT, in O(T log T).

    y_d(t) = sum_{tau=0}^{t} k_d(tau) u_d(t - tau)          U = rfft(u, N), K = rfft(k, N), y = irfft(U K, N)[:T]

A product of transforms is a *circular* convolution, which would leak the future into the past. Sequence and kernel are
therefore padded with zeros to N >= 2T - 1.

The work is done in blocks of a few channels, laid out channel by channel, that stay in the processor's cache from the
first transform to the last: the time is limited by memory, not by arithmetic.

Shapes: B batch, T tokens, D channels; N length of the transforms, F = N / 2 + 1 frequencies.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK = {"cpu": 2**19, "cuda": 2**27}
"""Approximate size of a block after padding [numbers], by device (others: as the CPU); on GPUs it bounds memory."""
MIN_CHANNELS = 16
"""Per block: one cache line."""


_ODD = sorted(3**b * 5**c for b in range(5) for c in range(5))


def fft_length(length: int) -> int:
    """The smallest even 2^a 3^b 5^c that is at least 2 `length` - 1, enough for a linear convolution.

    A transform of such a length is about as fast per number as one of a power of two.
    """
    least = max(2 * length - 1, 2)
    return min(odd << max((-(-least // odd) - 1).bit_length(), 1) for odd in _ODD)


def causal_convolution(u_BTD: Tensor, k_DT: Tensor) -> Tensor:
    """y [B, T, D], differentiable once; `u` and `k` in one dtype, float32 or float64."""
    return _Convolution.apply(u_BTD, k_DT)  # pyright: ignore[reportReturnType] - apply is typed loosely


class _Convolution(torch.autograd.Function):
    """Saves u and k, not their transforms, which are twice as large; backward needs no complex transform.

    du(s) = sum_t g(t) k(t - s) and dk(tau) = sum_t g(t) u(t - tau) are correlations: products with a conjugate.
    """

    @staticmethod
    def forward(ctx: Any, u_BTD: Tensor, k_DT: Tensor) -> Tensor:
        ctx.save_for_backward(u_BTD, k_DT)
        blocks = _Blocks(u_BTD)
        y_BTD = torch.empty_like(u_BTD, memory_format=torch.contiguous_format)
        for channels in blocks.channels():
            k_CF = blocks.spectrum(k_DT[channels])
            for rows in blocks.rows():
                blocks.write_inverse(blocks.spectrum_of(u_BTD[rows, :, channels]).mul_(k_CF), y_BTD[rows, :, channels])
        return y_BTD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (g_BTD,), (u_BTD, k_DT) = grads, ctx.saved_tensors
        blocks = _Blocks(u_BTD)
        wants_u, wants_k = ctx.needs_input_grad
        grad_u = torch.empty_like(u_BTD, memory_format=torch.contiguous_format) if wants_u else None
        grad_k = torch.empty_like(k_DT) if wants_k else None
        for channels in blocks.channels():
            k_CF = blocks.spectrum(k_DT[channels]).conj_physical_() if wants_u else None
            sums_CF: Tensor | None = None
            for rows in blocks.rows():
                g = blocks.spectrum_of(g_BTD[rows, :, channels])
                if grad_k is not None:
                    part = blocks.spectrum_of(u_BTD[rows, :, channels]).conj_physical_().mul_(g).sum(0)
                    sums_CF = part if sums_CF is None else sums_CF.add_(part)
                if grad_u is not None and k_CF is not None:
                    blocks.write_inverse(g.mul_(k_CF), grad_u[rows, :, channels])
            if grad_k is not None and sums_CF is not None:
                grad_k[channels] = torch.fft.irfft(sums_CF, blocks.size)[:, : blocks.length]
        return grad_u, grad_k


class _Blocks:
    """The blocks of one convolution, and the operations on a block."""

    def __init__(self, u_BTD: Tensor):
        self.batch, self.length, self.dim = u_BTD.shape
        self.size = fft_length(self.length)
        block = BLOCK.get(u_BTD.device.type, BLOCK["cpu"])
        self._channels = min(self.dim, max(MIN_CHANNELS, block // self.size))
        self._rows = min(self.batch, max(1, block // (self.size * self._channels)))

    def channels(self) -> Iterator[slice]:
        """Channels of each block."""
        return (slice(start, start + self._channels) for start in range(0, self.dim, self._channels))

    def rows(self) -> Iterator[slice]:
        """Rows of the batch in each block."""
        return (slice(start, start + self._rows) for start in range(0, self.batch, self._rows))

    def spectrum(self, k_CT: Tensor) -> Tensor:
        """Transform [C, F] of the padded sequences."""
        return torch.fft.rfft(k_CT, self.size)

    def spectrum_of(self, u_BTC: Tensor) -> Tensor:
        """Transform [B, C, F] of the padded channels."""
        # Transposed and padded in one pass: a transform along a strided dimension is slow.
        padded = u_BTC.new_zeros(u_BTC.shape[0], u_BTC.shape[2], self.size)
        padded[..., : self.length] = u_BTC.transpose(1, 2)
        return torch.fft.rfft(padded)

    def write_inverse(self, spectrum_BCF: Tensor, y_BTC: Tensor) -> None:
        """Set `y`, a part of the result, to the inverse transform."""
        y_BTC.copy_(torch.fft.irfft(spectrum_BCF, self.size)[..., : self.length].transpose(1, 2))
