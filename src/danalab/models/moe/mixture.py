"""The layer: route, bring each expert's tokens together, let the experts work, bring the results back.

    y = sum_{i in top k} w_i expert_i(x)   [ + sigmoid(w . x) shared(x) ]

Shapes: B batch, L length, T = B L tokens, D model dimension, K experts of a token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from danalab.models.config import ModelConfig
from danalab.models.layers.basic import Linear
from danalab.models.layers.mlp import GeluMLP, SwiGLU
from danalab.models.moe.experts import Activation, Experts
from danalab.models.moe.permute import combine, sort_by_expert, spread
from danalab.models.moe.router import Router, Routing

if TYPE_CHECKING:
    from danalab.models.parallel.experts import Exchange


def feed_forward(config: ModelConfig, layer: int, activation: Activation) -> nn.Module:
    """What stands as the MLP in the block of index `layer`: experts where the configuration has them there."""
    sparsity = config.sparsity
    if sparsity is not None and layer in sparsity.layers:
        return MixtureOfExperts(config, activation)
    return _mlp(config, activation, config.mlp_dim)


class MixtureOfExperts(nn.Module):
    """See the module."""

    def __init__(self, config: ModelConfig, activation: Activation):
        super().__init__()
        sparsity = config.sparsity
        assert sparsity is not None
        self.router = Router(config.d_model, sparsity.n_experts, sparsity.top_k, renormalise=config.renormalise)
        self.experts = Experts(sparsity.n_experts, config.d_model, sparsity.expert_dim, activation)
        self.exchange: Exchange | None = None
        """How rows reach experts of other ranks; None: all are here."""
        # Where each rank has some features of every expert, gradients of what enters are summed over ranks, and so is
        # what leaves (`danalab.models.parallel.tensor`).
        self.enter: Callable[[Tensor], Tensor] = _unchanged
        self.leave: Callable[[Tensor], Tensor] = _unchanged
        self.shared = _mlp(config, activation, sparsity.shared_dim) if sparsity.shared_dim else None
        self.shared_gate = Linear(config.d_model, 1, role="router") if sparsity.shared_gate else None

    def forward(self, x_BLD: Tensor) -> tuple[Tensor, Routing]:
        """([B, L, D], what the router's losses need)."""
        x_TD = x_BLD.reshape(-1, x_BLD.shape[-1])
        weights, chosen, routing = self.router(x_TD)
        order = sort_by_expert(chosen)
        rows_RD = spread(self.enter(x_TD).to(self.experts.dtype_for(x_TD)), order)
        if self.exchange is None:
            rows_RD = self.experts(rows_RD, routing.counts)
        else:
            rows_RD = self.exchange(self.experts, rows_RD, routing.counts)
        y_TD = self.leave(combine(rows_RD, self.enter(weights), order))
        if self.shared is not None:
            shared = self.shared(x_TD)
            y_TD = y_TD + (shared if self.shared_gate is None else torch.sigmoid(self.shared_gate(x_TD)) * shared)
        return y_TD.view(x_BLD.shape), routing


def _unchanged(x: Tensor) -> Tensor:
    return x


def _mlp(config: ModelConfig, activation: Activation, width: int) -> nn.Module:
    if activation == "swiglu":
        return SwiGLU(config, width)
    return GeluMLP(config, "tanh" if activation == "gelu-tanh" else "none", width)
