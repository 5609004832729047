"""Convolution of a long row by chunks: each is convolved separately, and receives the state left by earlier ones.

    V_n = sum_{j<Q} lambda^(Q-1-j) u_(nQ+j)                    contribution of chunk n to the state
    S_n = sum_{m<n} lambda^(Q(n-1-m)) V_m                      the state before chunk n
    y_(nQ+t) = sum_{tau<=t} k(tau) u_(nQ+t-tau) + Re sum_r C_r lambda_r^(t+1) S_(n,r)

This equals the convolution of the whole row and is faster: transforms of one short length, which stay in the cache, and
matrix products for the rest, so that time is linear in T. Sums over lags and over modes are products of real matrices,
whose 2 R columns are the real and the imaginary parts.

Shapes: B rows of n chunks of Q tokens, D channels in G groups of C, R modes, E = 2 R.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from danalab.models.resonance.convolution import causal_convolution

MIN_CHUNK = 1024
"""Below this [tokens] the matrix products cost more than shorter transforms save."""
MAX_CHUNKS = 64
"""Per row: the sums over earlier chunks cost the square of their number."""


def chunk_length(length: int) -> int:
    """Q [tokens], a power of two, for rows of `length` tokens; rows that are no longer than Q are one chunk."""
    least = max(MIN_CHUNK, -(-length // MAX_CHUNKS))
    return 1 << (least - 1).bit_length()


def chunked_bank_convolution(
    u_BTD: Tensor, skip_D: Tensor, gamma_GR: Tensor, omega_GR: Tensor, weight_GCR: Tensor
) -> Tensor:
    """y [B, T, D] of a bank of oscillators that starts at rest; differentiable once.

    Args:
        u: the input, float32 or float64, as all the others.
        skip: d, the direct path.
        gamma, omega: the poles. weight: C = A beta e^(i phi), complex.
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
    contributions = _complex(_ChunkState.apply(u_NQD, powers_GEQ[..., :-1].flip(-1))).unflatten(0, (batch, count))
    state = weight_GCR * _earlier(contributions, _powers(gamma_GR, omega_GR, chunk * _distances(count, lags)))
    y_NQD = _AddState.apply(causal_convolution(u_NQD, k_DQ), _parts(state.conj()).flatten(0, 1), powers_GEQ[..., 1:])
    return y_NQD.reshape(batch, count * chunk, dim)[:, :length]


def _powers(gamma_GR: Tensor, omega_GR: Tensor, exponents: Tensor) -> Tensor:
    """lambda^exponent, complex [G, R, ...]."""
    gamma, omega = (value.reshape(*value.shape, *[1] * exponents.ndim) for value in (gamma_GR, omega_GR))
    return torch.polar((-gamma * exponents).exp(), omega * exponents)


def _parts(value: Tensor, dim: int = -1) -> Tensor:
    """Real parts, then imaginary parts, along `dim`. Of Re(z w), conj(z) is one factor and w the other."""
    return torch.cat((value.real, value.imag), dim)


def _complex(parts: Tensor) -> Tensor:
    """The inverse of `_parts` in the last dimension."""
    real, imaginary = parts.chunk(2, -1)
    return torch.complex(real, imaginary)


def _distances(count: int, like: Tensor) -> Tensor:
    """[n, m]: whole chunks between the end of chunk m and the start of chunk n, where m is before n."""
    numbers = torch.arange(count, device=like.device, dtype=like.dtype)
    return (numbers.unsqueeze(1) - 1 - numbers).clamp(min=0)


def _earlier(contributions_BnGCR: Tensor, powers_GRnm: Tensor) -> Tensor:
    """The state before each chunk, [B, n, G, C, R]."""
    return torch.einsum("grnm,bmgcr->bngcr", powers_GRnm.tril(-1), contributions_BnGCR)


class _ChunkState(torch.autograd.Function):
    """Contribution of each row to the state, [N, G, C, E]: the sum over its tokens of u times `powers` [G, E, Q].

    One product per group, in place: a single product would need a permuted copy of u.
    """

    @staticmethod
    def forward(ctx: Any, u_NQD: Tensor, powers_GEQ: Tensor) -> Tensor:
        ctx.save_for_backward(u_NQD, powers_GEQ)
        rows = [torch.bmm(u.mT, _each(powers, u).mT) for u, powers in _groups(u_NQD, powers_GEQ)]
        return torch.stack(rows, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        u_NQD, powers_GEQ = ctx.saved_tensors
        grad_u, grad_powers = torch.empty_like(u_NQD), torch.empty_like(powers_GEQ)
        for number, (u, powers) in enumerate(_groups(u_NQD, powers_GEQ)):
            g_NCE = grads[0][:, number]
            _groups(grad_u, powers_GEQ)[number][0].copy_(torch.bmm(_each(powers, u).mT, g_NCE.mT))
            grad_powers[number] = torch.bmm(g_NCE.mT, u.mT).sum(0)
        return grad_u, grad_powers


class _AddState(torch.autograd.Function):
    """Adds to y, in place, the output of the earlier chunks' state [N, G, C, E] times `powers` [G, E, Q]."""

    @staticmethod
    def forward(ctx: Any, y_NQD: Tensor, state_NGCE: Tensor, powers_GEQ: Tensor) -> Tensor:
        ctx.save_for_backward(state_NGCE, powers_GEQ)
        ctx.mark_dirty(y_NQD)
        for number, (y, powers) in enumerate(_groups(y_NQD, powers_GEQ)):
            y.baddbmm_(_each(powers, y).mT, state_NGCE[:, number].mT)
        return y_NQD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        state_NGCE, powers_GEQ = ctx.saved_tensors
        grad_state, grad_powers = torch.empty_like(state_NGCE), torch.empty_like(powers_GEQ)
        for number, (g_NQC, powers) in enumerate(_groups(grads[0], powers_GEQ)):
            grad_state[:, number] = torch.bmm(g_NQC.mT, _each(powers, g_NQC).mT)
            grad_powers[number] = torch.bmm(state_NGCE[:, number].mT, g_NQC.mT).sum(0)
        return grads[0], grad_state, grad_powers


def _groups(x_NQD: Tensor, powers_GEQ: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The channels [N, Q, C] of each group, as views, and its powers [E, Q]."""
    return list(zip(x_NQD.chunk(powers_GEQ.shape[0], -1), powers_GEQ, strict=True))


def _each(powers_EQ: Tensor, like_NQC: Tensor) -> Tensor:
    """The same powers for every row."""
    return powers_EQ.expand(like_NQC.shape[0], -1, -1)
