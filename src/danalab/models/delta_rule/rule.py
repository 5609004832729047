"""The gated delta rule: a matrix S decays by e^g and stores, at each key, a share b of the error of its value.

    S_t = e^(g_t) S_{t-1} + k_t (b_t (v_t - e^(g_t) S_{t-1}^T k_t))^T,      o_t = S_t^T q_t

By chunks of C tokens, with G_i the sum of g up to token i of its chunk, D_ij = e^(G_i - G_j) for j <= i, else 0, and
A = (1 + tril_{<}(diag(b) (D * K K^T)))^-1 diag(b), the writes of a chunk are V' = A V - A diag(e^G) K S:

    O = diag(e^G) Q S + (D * Q K^T) V',     S <- e^(G_C) S + (diag(e^(G_C - G)) K)^T V'

Only S is passed between chunks, so that time is linear in T: `delta_scan` is this sequential part, two products per
chunk, as one operation with its gradient. The compiler does not unroll its loop, and autograd has one node for it.
Sources: S. Yang et al. 2024, arXiv 2412.06464 (gated delta rule), 2406.06484 (the chunked form).

Shapes: B batch, T tokens, N key heads, R value heads of a key head, K key features, V value features, n chunks of C.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import register_flop_formula

from danalab.models.layers.precision import is_plain_inference
from danalab.scaling.shape import CHUNK

CHUNK_ON_CPU = 32
"""Tokens of a chunk; on accelerators `CHUNK`. Longer chunks need more arithmetic in larger products."""


def gated_delta_rule(
    q_BTNK: Tensor,
    k_BTNK: Tensor,
    v_BTHV: Tensor,
    g_BTH: Tensor,
    b_BTH: Tensor,
    state_BHKV: Tensor | None = None,
    starts_BT: Tensor | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """(o [B, T, H, V], the state after T tokens [B, H, K, V]), in the dtype of the arguments, by chunks.

    Args:
        q, k: [B, T, N, K]; keys of length 1 at most, otherwise the state may grow without bound.
        v: [B, T, H, V] with H = R N value heads: heads R h to R h + R - 1 share key head h.
        g: logarithm of the decay factor, [B, T, H], at most 0. b: share of the error that is stored, [B, T, H], 0 to 1.
        state: after earlier tokens, [B, H, K, V]; None: zeros.
        starts: where each token's document starts in the row, int64 [B, T]; the state is reset there. None: the row is
            one document. Not together with a state.
        chunk: C, which affects the result by rounding only; None: a fast value for the device.
    """
    batch, length, heads, value_dim = v_BTHV.shape
    key_heads, key_dim = k_BTNK.shape[2:]
    chunk = min(chunk or (CHUNK_ON_CPU if v_BTHV.device.type == "cpu" else CHUNK), length)
    chunks = -(-length // chunk)

    def by_chunk(x: Tensor, groups: int) -> Tensor:  # [B, T, groups x ., ...] -> [n, B, groups, ., C, ...]
        x = F.pad(x, (0, 0) * (x.ndim - 2) + (0, chunks * chunk - length))
        x = x.unflatten(2, (groups, -1)).unflatten(1, (chunks, chunk))
        return x.movedim((1, 2), (0, 4)).contiguous()

    q, k, v = (by_chunk(x, key_heads) for x in (q_BTNK, k_BTNK, v_BTHV))
    # A decay below the square of the rounding error is zero in effect. Without this bound one such token would make the
    # cumulative sums so large that their differences lose all digits.
    g_BTH = g_BTH.clamp(min=2 * math.log(torch.finfo(g_BTH.dtype).eps))
    total = _running_sum(by_chunk(g_BTH, key_heads))
    share = by_chunk(b_BTH, key_heads)
    between = total.unsqueeze(-1) - total.unsqueeze(-2)
    from_start, to_end = total.exp(), (total[..., -1:] - total).exp()
    ahead = torch.ones(chunk, chunk, dtype=torch.bool, device=v.device).triu(1)
    if starts_BT is not None:
        apart, begun, left = _documents(starts_BT, chunks, chunk)
        ahead = ahead | apart
        from_start, to_end = from_start.masked_fill(begun, 0.0), to_end.masked_fill(left, 0.0)
    # Masked before exp: above the diagonal exp would overflow, and infinity times 0 gives NaN gradients.
    between = between.masked_fill(ahead, -torch.inf).exp()

    system = share.unsqueeze(-1) * between * (k @ k.mT)
    one = torch.eye(chunk, dtype=system.dtype, device=system.device)
    inverse = torch.linalg.solve_triangular(system, one, upper=False, unitriangular=True)
    written = inverse * share.unsqueeze(-2)
    u = written @ v
    w = (written * from_start.unsqueeze(-2)) @ k
    before = v.new_zeros(batch, heads, key_dim, value_dim) if state_BHKV is None else state_BHKV
    u, w, kept = (x.flatten(1, 3) for x in (u, w, to_end.unsqueeze(-1) * k))
    values, states = delta_scan(u, w, kept, from_start[..., -1].flatten(1), before.flatten(0, 1))
    o = (between * (q @ k.mT)).flatten(1, 3) @ values + (from_start.unsqueeze(-1) * q).flatten(1, 3) @ states[:-1]
    o_BTHV = o.unflatten(1, (batch, heads)).permute(1, 0, 3, 2, 4).flatten(1, 2)
    return o_BTHV[:, :length], states[-1].unflatten(0, (batch, heads))


def _running_sum(x: Tensor) -> Tensor:
    """Along the last dimension."""
    if not torch.are_deterministic_algorithms_enabled():
        return x.cumsum(-1)
    # torch's cumulative sum has no deterministic kernel for GPUs; float64, as products of float32 may be TensorFloat32.
    ones = torch.ones(x.shape[-1], x.shape[-1], dtype=torch.float64, device=x.device)
    return (x.double() @ ones.triu()).to(x.dtype)


def _documents(starts_BT: Tensor, chunks: int, chunk: int) -> tuple[Tensor, Tensor, Tensor]:
    """Masks of document boundaries, to be broadcast over heads: (between tokens i and j of a chunk [n, B, 1, 1, C, C],
    between the state before the chunk and token i, between token i and the state after it [n, B, 1, 1, C])."""
    beyond = chunks * chunk - starts_BT.shape[1]
    starts = torch.cat((starts_BT, starts_BT[:, -1:].expand(-1, beyond)), dim=1)
    starts = starts.unflatten(1, (chunks, chunk)).transpose(0, 1)[:, :, None, None]
    first = chunk * torch.arange(chunks, device=starts.device).reshape(-1, 1, 1, 1, 1)
    return starts.unsqueeze(-1) != starts.unsqueeze(-2), starts >= first, starts != starts[..., -1:]


def delta_step(
    q_BNK: Tensor, k_BNK: Tensor, v_BHV: Tensor, g_BH: Tensor, b_BH: Tensor, state_BHKV: Tensor
) -> tuple[Tensor, Tensor]:
    """One token: (o [B, H, V], the next state [B, H, K, V]); cost and memory are independent of the length."""
    groups = v_BHV.shape[1] // k_BNK.shape[1]
    q, k = (x.repeat_interleave(groups, 1).unsqueeze(-1) for x in (q_BNK, k_BNK))
    state = g_BH.exp()[..., None, None] * state_BHKV
    error = b_BH.unsqueeze(-1) * (v_BHV - (k.mT @ state).squeeze(-2))
    state = torch.addcmul(state, k, error.unsqueeze(-2))
    return (q.mT @ state).squeeze(-2), state


def delta_scan(u: Tensor, w: Tensor, k: Tensor, decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """(v [n, M, C, V], S [n + 1, M, K, V]: the state before each chunk, and the last one).

    u: [n, M, C, V]; w, k: [n, M, C, K]; d: [n, M]; S_0: [M, K, V].
    """
    return (_compute if is_plain_inference() else scan_op)(u, w, k, decay, state)


def _compute(u: Tensor, w: Tensor, k: Tensor, decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    chunks = u.shape[0]
    v, states = torch.empty_like(u), state.new_empty(chunks + 1, *state.shape)
    states[0] = state
    for i in range(chunks):
        torch.baddbmm(u[i], w[i], states[i], alpha=-1, out=v[i])
        torch.mul(states[i], decay[i, :, None, None], out=states[i + 1])
        states[i + 1].baddbmm_(k[i].mT, v[i])
    return v, states


scan_op = torch.library.custom_op("danalab::delta_scan", _compute, mutates_args=())


@torch.library.custom_op("danalab::delta_scan_backward", mutates_args=())
def delta_scan_backward(
    grad_v: Tensor, grad_states: Tensor, w: Tensor, k: Tensor, decay: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients (of every v [n, M, C, V], of every S [n + 1, M, K, V]) including their effect on later chunks."""
    of_v, of_states = torch.empty_like(grad_v), torch.empty_like(grad_states)
    of_states[-1] = grad_states[-1]
    for i in reversed(range(grad_v.shape[0])):
        after = of_states[i + 1]
        torch.baddbmm(grad_v[i], k[i], after, out=of_v[i])
        torch.addcmul(grad_states[i], after, decay[i, :, None, None], out=of_states[i])
        of_states[i].baddbmm_(w[i].mT, of_v[i], alpha=-1)
    return of_v, of_states


scan_op.register_fake(
    lambda u, w, k, decay, state: (torch.empty_like(u), state.new_empty(u.shape[0] + 1, *state.shape))
)
delta_scan_backward.register_fake(lambda v, states, w, k, decay: (torch.empty_like(v), torch.empty_like(states)))


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    _, w, k, decay, _ = inputs
    ctx.save_for_backward(w, k, decay, *output)


def _backward(ctx: Any, grad_v: Tensor, grad_states: Tensor) -> tuple[Tensor, ...]:
    w, k, decay, v, states = ctx.saved_tensors
    of_v, of_states = delta_scan_backward(grad_v.contiguous(), grad_states.contiguous(), w, k, decay)
    before, after = states[:-1], of_states[1:]
    return of_v, -(of_v @ before.mT), v @ after.mT, (after * before).sum((-2, -1)), of_states[0]


scan_op.register_autograd(_backward, setup_context=_keep)


@register_flop_formula([torch.ops.danalab.delta_scan, torch.ops.danalab.delta_scan_backward])
def _flops(u_shape: Any, other_shape: Any, *rest: Any, **kwargs: Any) -> int:
    """For torch's counter: two products of C x K x V, forward and back alike."""
    chunks, heads, tokens, values = u_shape
    return 4 * chunks * heads * tokens * values * rest[0][-1]
