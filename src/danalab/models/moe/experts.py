"""Many MLPs in stacked weights, each applied to its own rows; no row is dropped at any imbalance.

    expert e:  down_e( silu(gate_e x) * up_e x )          or  down_e( gelu(up_e x) )

Rows are sorted by expert, so that each expert reads one contiguous segment: a grouped product, y[r] = W[g(r)] x[r], is
one operation for the compiler at any group sizes, torch's on GPUs that have one, else one product per segment.

Shapes: R rows, D model dimension, E experts or groups, F hidden features of an expert; M columns of x, N rows of a
matrix.
"""

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import register_flop_formula

from danalab.models.architectures import Activation
from danalab.models.layers.precision import is_autocast, is_plain_inference
from danalab.models.shards import local_shard


class StackedLinear(nn.Module):
    """One matrix for each expert: weight [E, out_features, in_features]."""

    def __init__(self, n_experts: int, in_features: int, out_features: int, role: str = "expert"):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_experts, out_features, in_features))
        self.role = role

    def forward(self, x_RF: Tensor, counts_E: Tensor) -> Tensor:
        """Each row times the matrix of its expert; `counts` rows for each expert, in order."""
        return grouped_linear(x_RF, self.local(), counts_E)

    def local(self) -> Tensor:
        """The weight; if it is sharded, this rank's experts, or this rank's features of all experts."""
        return local_shard(self.weight)


class Experts(nn.Module):
    """All experts of a layer."""

    def __init__(self, n_experts: int, d_model: int, expert_dim: int, activation: Activation = "swiglu"):
        super().__init__()
        self.activation = activation
        self.gate = StackedLinear(n_experts, d_model, expert_dim) if activation == "swiglu" else None
        self.up = StackedLinear(n_experts, d_model, expert_dim)
        self.down = StackedLinear(n_experts, expert_dim, d_model, role="expert_residual")

    def dtype_for(self, x: Tensor) -> torch.dtype:
        """The dtype of matrix products with `x`."""
        return product_dtype(x, self.up.weight)

    def forward(self, x_RD: Tensor, counts_E: Tensor) -> Tensor:
        """[R, D]: rows sorted by expert.

        `counts`: rows of each expert, int64 [E], with the sum R.
        """
        if self.gate is None:
            up = self.up(x_RD, counts_E)
            hidden = F.gelu(up, approximate="tanh" if self.activation == "gelu-tanh" else "none")
        elif x_RD.device.type == "cpu":
            dtype = self.dtype_for(x_RD)
            gate, up = (stack.local().to(dtype) for stack in (self.gate, self.up))
            hidden = gated_hidden(x_RD.to(dtype), gate, up, counts_E)
        else:
            hidden = F.silu(self.gate(x_RD, counts_E)) * self.up(x_RD, counts_E)
        return self.down(hidden, counts_E)


def gated_hidden(x_RD: Tensor, gate_EFD: Tensor, up_EFD: Tensor, counts_E: Tensor) -> Tensor:
    """[R, F], all in one dtype; differentiable once.

    `counts`: rows of each expert, in order, int64 [E], with the sum R.
    """
    return (_hidden if is_plain_inference() else _forward)(x_RD, gate_EFD, up_EFD, counts_E)[0]


def _hidden(x: Tensor, gate: Tensor, up: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    hidden, g, u = (x.new_empty(x.shape[0], gate.shape[1]) for _ in range(3))
    sizes = counts.tolist()
    for rows, h_e, g_e, u_e, gate_e, up_e in zip(
        *(t.split(sizes) for t in (x, hidden, g, u)), gate, up, strict=True
    ):
        product(rows, gate_e.T, g_e)
        product(rows, up_e.T, u_e)
        torch.mul(F.silu(g_e), u_e, out=h_e)
    return hidden, g, u


_forward = torch.library.custom_op("danalab::gated_hidden", _hidden, mutates_args=())


@torch.library.custom_op("danalab::gated_hidden_backward", mutates_args=())
def _gradients(
    grad: Tensor, x: Tensor, gate: Tensor, up: Tensor, g: Tensor, u: Tensor, counts: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of (x, gate, up)."""
    grad_x, grad_gate, grad_up = torch.empty_like(x), torch.empty_like(gate), torch.empty_like(up)
    sizes = counts.tolist()
    parts = zip(*(t.split(sizes) for t in (grad, x, g, u, grad_x)), gate, up, grad_gate, grad_up, strict=True)
    for dh, rows, g_e, u_e, dx, gate_e, up_e, d_gate, d_up in parts:
        dg = torch.ops.aten.silu_backward(dh * u_e, g_e)
        du = F.silu(g_e).mul_(dh)
        torch.mm(dg.T, rows, out=d_gate)
        torch.mm(du.T, rows, out=d_up)
        torch.mm(dg, gate_e, out=dx)
        dx.addmm_(du, up_e)
    return grad_x, grad_gate, grad_up


_forward.register_fake(
    lambda x, gate, up, counts: tuple(x.new_empty(len(x), gate.shape[1]) for _ in range(3))
)
_gradients.register_fake(lambda grad, x, gate, up, g, u, counts: tuple(map(torch.empty_like, (x, gate, up))))


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, gate, up, counts = inputs
    _, g, u = output
    ctx.mark_non_differentiable(g, u)
    ctx.set_materialize_grads(False)  # else two tensors of zeros are allocated for absent gradients
    ctx.save_for_backward(x, gate, up, g, u, counts)


_forward.register_autograd(
    lambda ctx, grad, *unused: (*_gradients(grad.contiguous(), *ctx.saved_tensors), None), setup_context=_keep
)


@register_flop_formula(torch.ops.danalab.gated_hidden)
def _forward_flops(x: Any, gate: Any, *args: Any, out_shape: Any = None, **more: Any) -> int:
    return 4 * x[0] * gate[1] * gate[2]


@register_flop_formula(torch.ops.danalab.gated_hidden_backward)
def _gradient_flops(grad: Any, x: Any, gate: Any, *args: Any, out_shape: Any = None, **more: Any) -> int:
    return 8 * x[0] * gate[1] * gate[2]


log = logging.getLogger(__name__)

MIN_ROWS = 32
"""On a CPU, fewer rows than this are padded with zeros: for few rows libraries choose other kernels, which round
differently, and the output for a token would depend, in its last bit, on how many others its expert has."""


def grouped_linear(x_RM: Tensor, weight_ENM: Tensor, counts_E: Tensor) -> Tensor:
    """[R, N], in the dtype of a linear map of the same arguments; differentiable once.

    `counts`: rows of each group, in order, int64 [E], with the sum R.
    """
    dtype = product_dtype(x_RM, weight_ENM)
    op = _grouped if is_plain_inference() else _linear
    return op(x_RM.to(dtype), weight_ENM.to(dtype), counts_E)


def product_dtype(x: Tensor, weight: Tensor) -> torch.dtype:
    """The dtype of a product of the two: autocast's where that is on."""
    if is_autocast(x.device):
        return torch.get_autocast_dtype(x.device.type)
    return torch.promote_types(x.dtype, weight.dtype)


def _grouped(x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    if _has_kernel(x, x.shape[1], weight.shape[1]):
        return _kernel()(x, weight.mT, offs=counts.cumsum(0).to(torch.int32))
    sizes = counts.tolist()
    y = x.new_empty(x.shape[0], weight.shape[1])
    for rows, out, matrix in zip(x.split(sizes), y.split(sizes), weight, strict=True):
        product(rows, matrix.T, out)
    return y


_linear = torch.library.custom_op("danalab::grouped_linear", _grouped, mutates_args=())


@torch.library.custom_op("danalab::grouped_outer", mutates_args=())
def _outer(g: Tensor, x: Tensor, counts: Tensor) -> Tensor:
    """Each group's g^T x: [E, N, M] of g [R, N] and x [R, M]."""
    if _has_kernel(x, x.shape[1], g.shape[1]):
        outer = _kernel()(g.T, x, offs=counts.cumsum(0).to(torch.int32))
        return outer.masked_fill_(
            counts.eq(0)[:, None, None], 0.0
        )  # not written for an empty group on Blackwell
    sizes = counts.tolist()
    total = x.new_empty(len(sizes), g.shape[1], x.shape[1])
    for left, right, out in zip(g.split(sizes), x.split(sizes), total, strict=True):
        torch.mm(left.T, right, out=out)
    return total


_linear.register_fake(lambda x, weight, counts: x.new_empty(x.shape[0], weight.shape[1]))
_outer.register_fake(lambda g, x, counts: x.new_empty(counts.shape[0], g.shape[1], x.shape[1]))


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    x, weight, counts = ctx.saved_tensors
    grad = grad.contiguous()
    grad_x = _linear(grad, weight.mT, counts) if ctx.needs_input_grad[0] else None
    return grad_x, _outer(grad, x, counts) if ctx.needs_input_grad[1] else None, None


_linear.register_autograd(_backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))


@register_flop_formula(torch.ops.danalab.grouped_linear)
def _linear_flops(x: Any, weight: Any, counts: Any, *args: Any, out_shape: Any = None, **more: Any) -> int:
    return 2 * x[0] * weight[1] * weight[2]


@register_flop_formula(torch.ops.danalab.grouped_outer)
def _outer_flops(g: Any, x: Any, counts: Any, *args: Any, out_shape: Any = None, **more: Any) -> int:
    return 2 * g[0] * g[1] * x[1]


def product(rows: Tensor, matrix: Tensor, out: Tensor) -> None:
    """out = rows @ matrix; each row of the result is independent of the number of rows."""
    n = rows.shape[0]
    if n >= MIN_ROWS or rows.device.type != "cpu":
        torch.mm(rows, matrix, out=out)
    elif n:
        padded = rows.new_zeros(MIN_ROWS, rows.shape[1])
        padded[:n] = rows
        out.copy_((padded @ matrix)[:n])


def _kernel() -> Callable[..., Tensor]:
    return getattr(F, "grouped_mm", None) or torch._grouped_mm  # the public name is of torch 2.10


def _has_kernel(x: Tensor, *widths: int) -> bool:
    """Whether torch's grouped product applies: bfloat16 on Hopper and later, widths that are multiples of 16 bytes."""
    if x.device.type != "cuda" or x.dtype != torch.bfloat16 or x.shape[0] == 0:
        return False
    return not any(width % 8 for width in widths) and _is_hopper(x.device.index)


@functools.cache
def _is_hopper(device: int | None) -> bool:
    has = torch.cuda.get_device_capability(device) >= (9, 0)
    if not has:
        log.info("experts: this GPU has no grouped product in torch; one product for each expert is slower")
    return has
