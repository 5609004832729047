"""Causal convolution of long rows with the kernels of oscillators: by chunks, by the FFT, and document by document.

    y_d(t) = sum_{tau=0}^{t} k_d(tau) u_d(t - tau)          U = rfft(u, N), K = rfft(k, N), y = irfft(U K, N)[:T]

A product of transforms is a *circular* convolution, which would leak the future into the past. Sequence and kernel are
therefore padded with zeros to N >= 2T - 1. The work is done in blocks of a few channels, laid out channel by channel,
that stay in the processor's cache from the first transform to the last: time is limited by memory, not by arithmetic.

A long row is cut into chunks; each is convolved separately, and receives the state left by earlier ones:

    V_n = sum_{j<Q} lambda^(Q-1-j) u_(nQ+j)                    contribution of chunk n to the state
    S_n = sum_{m<n} lambda^(Q(n-1-m)) V_m                      the state before chunk n
    y_(nQ+t) = sum_{tau<=t} k(tau) u_(nQ+t-tau) + Re sum_r C_r lambda_r^(t+1) S_(n,r)

This equals the convolution of the whole row and is faster: transforms of one short length, which stay in the cache, and
matrix products for the rest, so that time is linear in T. Sums over lags and over modes are products of real matrices,
whose 2 R columns are the real and the imaginary parts.

A filter that is reset at each document is not time-invariant. So documents are cut out of their rows and grouped by the
next power of two of their lengths; each group is padded with zeros at the end, which does not affect the causal result,
and convolved as one batch. Except for the shortest documents, there are fewer zeros than tokens.

Shapes: B rows of T tokens (n chunks of Q), D channels in G groups of C, R modes, E = 2 R; F = N / 2 + 1 frequencies.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.weak import WeakTensorKeyDictionary

BLOCK = {"cpu": 2**19, "cuda": 2**27}
"""Approximate size of a block after padding [numbers], by device (others: as the CPU); on GPUs it bounds memory."""
MIN_CHANNELS = 16
"""Per block: one cache line."""
_ODD = sorted(3**b * 5**c for b in range(5) for c in range(5))
MIN_CHUNK = 1024
"""Below this [tokens] the matrix products cost more than shorter transforms save."""
MAX_CHUNKS = 64
"""Per row: the sums over earlier chunks cost the square of their number."""
SHORTEST = 32
"""Documents up to this length form one group [tokens]."""
_lengths: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def chunked_bank_convolution(
    u_BTD: Tensor, skip_D: Tensor, gamma_GR: Tensor, omega_GR: Tensor, weight_GCR: Tensor
) -> Tensor:
    """y [B, T, D] of a bank of oscillators that starts at rest; differentiable once; all float32 or float64.

    d is the direct path, gamma and omega are the poles, weight is C = A beta e^(i phi), complex.
    """
    batch, length, dim = u_BTD.shape
    chunk = min(chunk_length(length), length)
    lags = torch.arange(chunk + 1, device=u_BTD.device, dtype=u_BTD.dtype)
    powers_GEQ = _parts(_powers(gamma_GR, omega_GR, lags), 1)  # one lag more than a chunk has tokens
    k_DQ = (_parts(weight_GCR.conj()) @ powers_GEQ[..., :-1]).flatten(0, 1)
    k_DQ = torch.cat(((k_DQ[:, :1] + skip_D.unsqueeze(1)), k_DQ[:, 1:]), 1)
    if chunk == length:
        return causal_convolution(u_BTD, k_DQ)
    count = -(-length // chunk)
    u_NQD = F.pad(u_BTD, (0, 0, 0, count * chunk - length)).reshape(batch * count, chunk, dim)
    # A product for each group, of views: one for all groups would need a permuted copy of u.
    groups, flipped_GQE = u_NQD.chunk(gamma_GR.shape[0], -1), powers_GEQ[..., :-1].flip(-1).mT
    sums_NGCE = torch.stack([u_NQC.mT @ powers for u_NQC, powers in zip(groups, flipped_GQE, strict=True)], 1)
    real, imaginary = sums_NGCE.chunk(2, -1)
    contributions = torch.complex(real, imaginary).unflatten(0, (batch, count))
    # [n, m]: whole chunks between the end of chunk m and the start of chunk n, where m is before n.
    between = (lags[:count].unsqueeze(1) - 1 - lags[:count]).clamp(min=0)
    powers_GRnm = _powers(gamma_GR, omega_GR, chunk * between).tril(-1)
    state = weight_GCR * torch.einsum("grnm,bmgcr->bngcr", powers_GRnm, contributions)  # before each chunk
    states = _parts(state.conj()).flatten(0, 1).unbind(1)
    outputs = [powers.mT @ each.mT for each, powers in zip(states, powers_GEQ[..., 1:], strict=True)]
    y_NQD = causal_convolution(u_NQD, k_DQ) + torch.cat(outputs, -1)
    return y_NQD.reshape(batch, count * chunk, dim)[:, :length]


def chunk_length(length: int) -> int:
    """Q [tokens], a power of two, for rows of `length` tokens; rows that are no longer than Q are one chunk."""
    least = max(MIN_CHUNK, -(-length // MAX_CHUNKS))
    return 1 << (least - 1).bit_length()


def _powers(gamma_GR: Tensor, omega_GR: Tensor, exponents: Tensor) -> Tensor:
    gamma, omega = (value.reshape(*value.shape, *[1] * exponents.ndim) for value in (gamma_GR, omega_GR))
    return torch.polar((-gamma * exponents).exp(), omega * exponents)


def _parts(value: Tensor, dim: int = -1) -> Tensor:
    """Real parts, then imaginary parts, along `dim`. Of Re(z w), conj(z) is one factor and w the other."""
    return torch.cat((value.real, value.imag), dim)


def causal_convolution(u_BTD: Tensor, k_DT: Tensor) -> Tensor:
    """y [B, T, D], differentiable once; `u` and `k` in one dtype, float32 or float64."""
    return _Convolution.apply(u_BTD, k_DT)  # pyright: ignore[reportReturnType] - apply is typed loosely


def fft_length(length: int) -> int:
    """The smallest even 2^a 3^b 5^c that is at least 2 `length` - 1, enough for a linear convolution.

    A transform of such a length is about as fast per number as one of a power of two.
    """
    least = max(2 * length - 1, 2)
    return min(odd << max((-(-least // odd) - 1).bit_length(), 1) for odd in _ODD)


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
            k_CF = torch.fft.rfft(k_DT[channels], blocks.size)
            for rows in blocks.rows():
                blocks.write_inverse(
                    blocks.spectrum_of(u_BTD[rows, :, channels]).mul_(k_CF), y_BTD[rows, :, channels]
                )
        return y_BTD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (g_BTD,), (u_BTD, k_DT) = grads, ctx.saved_tensors
        blocks = _Blocks(u_BTD)
        grad_u = torch.empty_like(u_BTD, memory_format=torch.contiguous_format)
        grad_k = torch.empty_like(k_DT)
        for channels in blocks.channels():
            k_CF = torch.fft.rfft(k_DT[channels], blocks.size).conj_physical_()
            sums_CF = torch.zeros_like(k_CF)
            for rows in blocks.rows():
                g = blocks.spectrum_of(g_BTD[rows, :, channels])
                sums_CF += blocks.spectrum_of(u_BTD[rows, :, channels]).conj_physical_().mul_(g).sum(0)
                blocks.write_inverse(g.mul_(k_CF), grad_u[rows, :, channels])
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

    def spectrum_of(self, u_BTC: Tensor) -> Tensor:
        """Transform [B, C, F] of the padded channels."""
        # Transposed and padded in one pass: a transform along a strided dimension is slow.
        padded = u_BTC.new_zeros(u_BTC.shape[0], u_BTC.shape[2], self.size)
        padded[..., : self.length] = u_BTC.transpose(1, 2)
        return torch.fft.rfft(padded)

    def write_inverse(self, spectrum_BCF: Tensor, y_BTC: Tensor) -> None:
        """Set `y`, a part of the result, to the inverse transform."""
        y_BTC.copy_(torch.fft.irfft(spectrum_BCF, self.size)[..., : self.length].transpose(1, 2))


def document_lengths(starts_BT: Tensor) -> list[int]:
    """Tokens of each document, row after row; `starts` from `danalab.models.layers.attention.document_starts`.

    Computed once for all layers, which receive the same tensor: on a GPU it waits for the device.
    """
    lengths = _lengths.get(starts_BT)
    if lengths is None:
        index = torch.arange(starts_BT.shape[1], device=starts_BT.device)
        first = (starts_BT == index).flatten().nonzero().flatten()
        ends = torch.cat((first[1:], first.new_tensor([starts_BT.numel()])))
        lengths = _lengths[starts_BT] = (ends - first).tolist()
    return lengths


def convolve_apart(u_BTD: Tensor, lengths: list[int], convolve: Callable[[Tensor], Tensor]) -> Tensor:
    """y [B, T, D]: `convolve` ([N, L, D] -> [N, L, D], causal) applied to each document alone."""
    documents = u_BTD.flatten(0, 1).split(lengths)
    outputs = list(documents)
    groups: dict[int, list[int]] = {}  # documents whose lengths have the same next power of two
    for number, length in enumerate(lengths):
        groups.setdefault((max(length, SHORTEST) - 1).bit_length(), []).append(number)
    for group in groups.values():
        padded = pad_sequence([documents[number] for number in group], batch_first=True)
        for number, y in zip(group, convolve(padded).unbind(), strict=True):
            outputs[number] = y[: lengths[number]]
    return torch.cat(outputs).view(u_BTD.shape)
