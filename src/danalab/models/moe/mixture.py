"""The layer: route, sort tokens by expert, apply the experts, restore the order.

    y = sum_{i in top k} w_i expert_i(x)   [ + sigmoid(w . x) shared(x) ]

Shapes: B batch, L length, T = B L tokens, D model dimension, K experts of a token.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

from danalab.models.config import ModelConfig
from danalab.models.layers.linear import Linear
from danalab.models.layers.mlp import GeluMLP, SwiGLU
from danalab.models.moe.experts import Experts
from danalab.models.moe.permute import combine, sort_by_expert, spread
from danalab.models.moe.router import Router, Routing


def make_mlp(config: ModelConfig, layer: int) -> nn.Module:
    """The MLP of the block of index `layer`, or its experts."""
    sparsity = config.sparsity
    if sparsity is not None and layer in sparsity.layers:
        return MixtureOfExperts(config)
    return _dense_mlp(config, config.mlp_dim)


class Exchange(Protocol):
    """Applies experts that other ranks hold (`danalab.models.parallel.experts`)."""

    def __call__(self, experts: Experts, rows_RD: Tensor, counts_E: Tensor, /) -> Tensor: ...


class MixtureOfExperts(nn.Module):
    """See the module."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        sparsity = config.sparsity
        assert sparsity is not None
        self.router = Router(config.d_model, sparsity.n_experts, sparsity.top_k, renormalise=config.renormalise)
        self.experts = Experts(sparsity.n_experts, config.d_model, sparsity.expert_dim, config.architecture.activation)
        self.exchange: Exchange | None = None
        """Sends rows to the experts of other ranks; None: this rank has all experts."""
        # Under tensor parallelism each rank has some features of every expert: gradients of the input are summed over
        # ranks, and so is the output (`danalab.models.parallel.tensor`).
        self.enter: Callable[[Tensor], Tensor] = _unchanged
        self.leave: Callable[[Tensor], Tensor] = _unchanged
        self.shared = _dense_mlp(config, sparsity.shared_dim) if sparsity.shared_dim else None
        self.shared_gate = Linear(config.d_model, 1, role="router") if sparsity.shared_gate else None

    def forward(self, x_BLD: Tensor) -> tuple[Tensor, Routing]:
        """([B, L, D], the sums that the router's losses need)."""
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


def _dense_mlp(config: ModelConfig, width: int) -> nn.Module:
    return (SwiGLU if config.architecture.activation == "swiglu" else GeluMLP)(config, width)
