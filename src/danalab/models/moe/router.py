"""The router: the experts of each token, and their weights.

    p = softmax(W x);   the k largest p_i, divided by their sum where `renormalise`

Its losses need only sums over tokens, so that a global batch may be divided in any way
(`danalab.models.moe.losses`). Shapes: T tokens, D model dimension, E experts, K experts of a token.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from danalab.models.layers.linear import Linear
from danalab.models.layers.precision import full_precision
from danalab.models.parallel.shards import local_shard


class Routing(NamedTuple):
    """The use of experts in one pass through a router, as sums over tokens."""

    counts: Tensor
    """Number of choices of each expert, int64 [E]."""
    probabilities: Tensor
    """Sum of each expert's probability, [E]."""
    lse2: Tensor
    """Sum of logsumexp(logits)^2, 0-dim."""


class Router(nn.Module):
    """See the module."""

    def __init__(self, d_model: int, n_experts: int, top_k: int, *, renormalise: bool = True):
        super().__init__()
        self.map = Linear(d_model, n_experts, role="router")
        self.n_experts, self.top_k, self.renormalise = n_experts, top_k, renormalise

    def forward(self, x_TD: Tensor) -> tuple[Tensor, Tensor, Routing]:
        """(weights [T, K] in float32, indices of experts [T, K] int64, sums for the losses)."""
        # Float32, outside of autocast: in bfloat16 close probabilities are equal, and rounding would change the choice.
        with full_precision(x_TD):
            exact = torch.promote_types(x_TD.dtype, torch.float32)
            logits = nn.functional.linear(x_TD.to(exact), local_shard(self.map.weight).to(exact))
            lse = logits.logsumexp(-1)
            probabilities = (logits - lse.unsqueeze(-1)).exp()
            weights, chosen = probabilities.topk(self.top_k, dim=-1)
            if self.renormalise:
                weights = weights / weights.sum(-1, keepdim=True)
            counts = chosen.new_zeros(self.n_experts).scatter_add_(
                0, chosen.flatten(), torch.ones_like(chosen).flatten()
            )
            return weights, chosen, Routing(counts, probabilities.sum(0), lse.square().sum())
