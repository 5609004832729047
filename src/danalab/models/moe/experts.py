"""Many MLPs in stacked weights, each applied to its own rows; no row is dropped at any imbalance.

    expert e:  down_e( silu(gate_e x) * up_e x )          or  down_e( gelu(up_e x) )

Rows are sorted by expert, so that each expert reads one contiguous segment. Shapes: R rows, D model dimension,
E experts, F hidden features of an expert.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from danalab.models.moe.fused import gated_hidden
from danalab.models.moe.grouped import grouped_linear, product_dtype
from danalab.models.parallel.shards import local_shard
from danalab.scaling.architectures import Activation


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
    """See the module."""

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

        Args: counts: rows of each expert, int64 [E], with the sum R.
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
