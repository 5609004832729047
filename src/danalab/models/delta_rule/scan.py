"""The sequential part of the chunked delta rule, two products per chunk, as one operation with its gradient.

    v_i = u_i - w_i S_i,     S_{i+1} = d_i S_i + k_i^T v_i,     i = 0 ... n - 1

The rest of the rule is products over all chunks at once. As one operation the loop is not unrolled by the compiler, and
autograd has one node for it.

Shapes: n chunks, M heads of all sequences, C tokens of a chunk, K key features, V value features.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from danalab.models.layers.precision import is_plain_inference


def delta_scan(u: Tensor, w: Tensor, k: Tensor, decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """(v [n, M, C, V], S [n + 1, M, K, V]: the state before each chunk, and the last one).

    Args:
        u: [n, M, C, V]. w, k: [n, M, C, K]. decay: d, [n, M]. state: S_0, [M, K, V].
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


@scan_op.register_fake
def _(u: Tensor, w: Tensor, k: Tensor, decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(u), state.new_empty(u.shape[0] + 1, *state.shape)


@delta_scan_backward.register_fake
def _(grad_v: Tensor, grad_states: Tensor, w: Tensor, k: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(grad_v), torch.empty_like(grad_states)


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
