"""Many MLPs in stacked weights, each applied to its own rows; no row is dropped at any imbalance.

    expert e:  down_e( silu(gate_e x) * up_e x )          or  down_e( gelu(up_e x) )

Rows are sorted by expert, so that each expert reads one contiguous segment: a grouped product, y[r] = W[g(r)] x[r], is
one operation for the compiler at any group sizes, torch's on GPUs that have one, else one product per segment.

Shapes: R rows, D model dimension, E experts or groups, F hidden features of an expert; M columns of x, N rows of a
matrix.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import register_flop_formula

from danalab.models.architectures import Activation
from danalab.models.layers.precision import is_plain_inference
from danalab.models.shards import local_shard


class StackedLinear(nn.Module):
    """One matrix for each expert: weight [E, out_features, in_features]."""

    def __init__(self, n_experts: int, in_features: int, out_features: int, role: str = "expert"):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_experts, out_features, in_features))
        self.role = role

    def forward(self, x_RF: Tensor, counts_E: Tensor) -> Tensor:
        """Each row times the matrix of its expert; `counts` rows for each expert, in order."""
        # Of a sharded weight: this rank's experts, or this rank's features of all experts.
        return grouped_linear(x_RF, local_shard(self.weight), counts_E)


class Experts(nn.Module):
    """All experts of a layer."""

    def __init__(self, n_experts: int, d_model: int, expert_dim: int, activation: Activation = "swiglu"):
        super().__init__()
        self.activation = activation
        self.gate = StackedLinear(n_experts, d_model, expert_dim) if activation == "swiglu" else None
        self.up = StackedLinear(n_experts, d_model, expert_dim)
        self.down = StackedLinear(n_experts, expert_dim, d_model, role="expert_residual")

    def forward(self, x_RD: Tensor, counts_E: Tensor) -> Tensor:
        """[R, D]: rows sorted by expert.

        `counts`: rows of each expert, int64 [E], with the sum R.
        """
        if self.gate is None:
            up = self.up(x_RD, counts_E)
            hidden = F.gelu(up, approximate="tanh" if self.activation == "gelu-tanh" else "none")
        else:
            hidden = F.silu(self.gate(x_RD, counts_E)) * self.up(x_RD, counts_E)
        return self.down(hidden, counts_E)


MIN_ROWS = 32
"""On a CPU, fewer rows than this are padded with zeros: for few rows libraries choose other kernels, which round
differently, and the output for a token would depend, in its last bit, on how many others its expert has."""


_kernel: Callable[..., Tensor] = (
    getattr(F, "grouped_mm", None) or torch._grouped_mm
)  # the public name is of torch 2.10


def grouped_linear(x_RM: Tensor, weight_ENM: Tensor, counts_E: Tensor) -> Tensor:
    """[R, N], in the dtype of a linear map of the same arguments; differentiable once.

    `counts`: rows of each group, in order, int64 [E], with the sum R.
    """
    dtype = product_dtype(x_RM, weight_ENM)
    op = _grouped if is_plain_inference() else _linear
    return op(x_RM.to(dtype), weight_ENM.to(dtype), counts_E)


def product_dtype(x: Tensor, weight: Tensor) -> torch.dtype:
    """The dtype of a product of the two: autocast's where that is on."""
    if not x.is_meta and torch.is_autocast_enabled(x.device.type):
        return torch.get_autocast_dtype(x.device.type)
    return torch.promote_types(x.dtype, weight.dtype)


def _grouped(x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    if _has_kernel(x, x.shape[1], weight.shape[1]):
        return _kernel(x, weight.mT, offs=counts.cumsum(0).to(torch.int32))
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
        outer = _kernel(g.T, x, offs=counts.cumsum(0).to(torch.int32))
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


def _has_kernel(x: Tensor, *widths: int) -> bool:
    """Whether torch's grouped product applies: bfloat16 on Hopper and later, widths that are multiples of 16 bytes."""
    if x.device.type != "cuda" or x.dtype != torch.bfloat16 or x.shape[0] == 0:
        return False
    return not any(width % 8 for width in widths) and torch.cuda.get_device_capability(x.device) >= (9, 0)
