"""Many MLPs in stacked weights, each applied to its own rows; no row is dropped, whatever the imbalance.

    expert e:  down_e( silu(gate_e x) * up_e x )          or  down_e( gelu(up_e x) )

Rows come sorted by expert, so that each expert reads one contiguous segment. Shapes: R rows, D model dimension,
E experts, F hidden features of an expert.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from danalab.models.moe.grouped import grouped_linear, product_dtype

Activation = Literal["swiglu", "gelu", "gelu-tanh"]


class StackedLinear(nn.Module):
    """One matrix for each expert: weight [E, out_features, in_features]."""

    def __init__(self, n_experts: int, in_features: int, out_features: int, role: str = "expert"):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_experts, out_features, in_features))
        self.role = role

    def forward(self, x_RF: Tensor, counts_E: Tensor) -> Tensor:
        """Each row times the matrix of its expert; `counts` rows for each expert, in order."""
        # Of weights that are shared out among ranks, this rank's experts.
        weight = self.weight.to_local() if isinstance(self.weight, DTensor) else self.weight
        return grouped_linear(x_RF, weight, counts_E)


class Experts(nn.Module):
    """See the module."""

    def __init__(self, n_experts: int, d_model: int, expert_dim: int, activation: Activation = "swiglu"):
        super().__init__()
        self.activation = activation
        self.gate = StackedLinear(n_experts, d_model, expert_dim) if activation == "swiglu" else None
        self.up = StackedLinear(n_experts, d_model, expert_dim)
        self.down = StackedLinear(n_experts, expert_dim, d_model, role="expert_residual")

    def dtype_for(self, x: Tensor) -> torch.dtype:
        """What the products with `x` are computed in."""
        return product_dtype(x, self.up.weight)

    def forward(self, x_RD: Tensor, counts_E: Tensor) -> Tensor:
        """[R, D]: rows sorted by expert.

        Args: counts: rows of each expert, int64 [E], with the sum R.
        """
        up = self.up(x_RD, counts_E)
        if self.gate is not None:
            hidden = F.silu(self.gate(x_RD, counts_E)) * up
        else:
            hidden = F.gelu(up, approximate="tanh" if self.activation == "gelu-tanh" else "none")
        return self.down(hidden, counts_E)
