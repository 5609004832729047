"""The layer: route, sort tokens by expert, apply the experts, restore the order; and the router's losses.

    p = softmax(W x);    w_i = the K largest p_i, divided by their sum where `renormalise`
    y = sum_{i in top K} w_i expert_i(x)   [ + sigmoid(w . x) shared(x) ]

    load balance   E sum_i f_i P_i      f_i: share of all choices of expert i; P_i: its mean probability
    router z       mean(logsumexp(logits)^2)
    entropy        sum_i P_i log P_i    minus the entropy of the mean distribution

The losses need only sums over tokens (`Routing`), so that a global batch may be divided in any way. Each is averaged
over the layers with experts. Even use gives a load balance of 1 for every K (Switch Transformers, eq. 4 to 6, for
K = 1). f carries no gradient, so that for known f the load balance is a sum over tokens, and so is the entropy, to
first order, for known log P. A trainer takes both from the previous step's global batch: the gradient is then the same
for any number of micro-batches and ranks, while f of each micro-batch would make it depend on how the batch is divided.
By default f and P are those of the pass itself.

Shapes: B batch, L length, T = B L tokens, D model dimension, K experts of a token, R = T K rows, E experts, S layers
that have experts.
Sources: arXiv 2101.03961 (load balance), 2202.08906 (router z-loss), 2501.11873 (why f of the global batch).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from danalab.models.config import ModelConfig
from danalab.models.layers.basic import MLP, Linear
from danalab.models.layers.precision import full_precision
from danalab.models.moe.experts import Experts, product_dtype
from danalab.models.shards import local_shard


class MixtureOfExperts(nn.Module):
    """Experts in place of an MLP: route, apply, combine."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        sparsity = config.sparsity
        assert sparsity is not None
        self.router = Router(
            config.d_model, sparsity.n_experts, sparsity.top_k, renormalise=config.renormalise
        )
        self.experts = Experts(
            sparsity.n_experts, config.d_model, sparsity.expert_dim, config.architecture.activation
        )
        self.exchange: Callable[[Experts, Tensor, Tensor], Tensor] | None = None
        """(experts, rows [R, D], counts [E]) -> [R, D], by experts of other ranks; None: this rank has all experts."""
        # Under tensor parallelism each rank has some features of every expert: gradients of the input are summed over
        # ranks, and so is the output (`danalab.models.parallel`).
        self.enter: Callable[[Tensor], Tensor] = lambda x: x
        self.leave: Callable[[Tensor], Tensor] = lambda x: x
        self.shared = MLP(config, sparsity.shared_dim) if sparsity.shared_dim else None
        self.shared_gate = Linear(config.d_model, 1, role="router") if sparsity.shared_gate else None

    def forward(self, x_BLD: Tensor) -> tuple[Tensor, Routing]:
        """([B, L, D], the sums that the router's losses need)."""
        x_TD = x_BLD.reshape(-1, x_BLD.shape[-1])
        weights, chosen, routing = self.router(x_TD)
        copy_of_row, row_of_copy = sort_by_expert(chosen)
        # Both ways are permutations of the copies, whose gradients are permutations: the same on every device.
        x_T1D = self.enter(x_TD).to(product_dtype(x_TD, self.experts.up.weight)).unsqueeze(1)
        copies_TKD = x_T1D.expand(-1, chosen.shape[1], -1)
        rows_RD = copies_TKD.flatten(0, 1).index_select(0, copy_of_row)
        if self.exchange is None:
            rows_RD = self.experts(rows_RD, routing.counts)
        else:
            rows_RD = self.exchange(self.experts, rows_RD, routing.counts)
        outputs_TKD = rows_RD.index_select(0, row_of_copy).view_as(copies_TKD)
        y_TD = self.leave((outputs_TKD * self.enter(weights).to(rows_RD.dtype).unsqueeze(-1)).sum(1))
        if self.shared is not None:
            shared = self.shared(x_TD)
            y_TD = y_TD + (
                shared if self.shared_gate is None else torch.sigmoid(self.shared_gate(x_TD)) * shared
            )
        return y_TD.view(x_BLD.shape), routing


class Router(nn.Module):
    """The experts of each token, and their weights."""

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
            flat = chosen.flatten()
            counts = chosen.new_zeros(self.n_experts).scatter_add_(0, flat, torch.ones_like(flat))
            return weights, chosen, Routing(counts, probabilities.sum(0), lse.square().sum())


class Routing(NamedTuple):
    """The use of experts in one pass through a router, as sums over tokens."""

    counts: Tensor
    """Number of choices of each expert, int64 [E]."""
    probabilities: Tensor
    """Sum of each expert's probability, [E]."""
    lse2: Tensor
    """Sum of logsumexp(logits)^2, 0-dim."""


def sort_by_expert(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The copies sorted by their expert, `chosen` of each, and by number within an expert: (copy in each row [R], row
    of each copy [R]), each the other's inverse. Copy k of token t has the number t K + k."""
    copy_of_row = chosen.flatten().argsort(stable=True)
    rows = torch.arange(copy_of_row.numel(), device=copy_of_row.device)
    return copy_of_row, torch.empty_like(copy_of_row).scatter_(0, copy_of_row, rows)


class Usage(NamedTuple):
    """The use of experts in a whole batch; [S, E] each, rows sum to 1."""

    load: Tensor
    """Share of all choices: f."""
    probability: Tensor
    """Mean probability: P."""

    @classmethod
    def of(cls, routing: Routing) -> Usage:
        """The usage from the sums of a whole batch, [S, ...]."""
        counts, probabilities = routing.counts, routing.probabilities.detach()
        return cls(counts / counts.sum(-1, keepdim=True), probabilities / probabilities.sum(-1, keepdim=True))

    @classmethod
    def even(cls, layers: int, n_experts: int, device: torch.device | str) -> Usage:
        """Equal use of all experts."""
        share = torch.full((layers, n_experts), 1 / n_experts, device=device)
        return cls(share, share)


def stacked(routings: list[Routing]) -> Routing:
    """The routings of single layers, stacked: [S, ...]."""
    return Routing(*(torch.stack(parts) for parts in zip(*routings, strict=True)))


def router_losses(
    routing: Routing, usage: Usage | None = None, position_count: Tensor | float | None = None
) -> dict[str, Tensor]:
    """{"load_balance", "router_z", "router_entropy"}, 0-dim, before their weights.

    Args:
        routing: sums of this pass, [S, ...].
        usage: f and P of the global batch; None: of this pass.
        position_count: tokens of the whole batch, the divisor of the sums; None: those of this pass.
    """
    if position_count is None:
        position_count = routing.probabilities.detach().sum(-1).mean()
    mean = routing.probabilities / position_count
    load = (Usage.of(routing) if usage is None else usage).load
    around = mean if usage is None else usage.probability
    tiny = torch.finfo(mean.dtype).tiny
    return {
        "load_balance": load.shape[-1] * (load * mean).sum(-1).mean(),
        "router_z": (routing.lse2 / position_count).mean(),
        "router_entropy": (mean * around.clamp(min=tiny).log()).sum(-1).mean(),
    }


def weighted(config: ModelConfig, losses: dict[str, Tensor]) -> Tensor:
    """The weighted sum that is added to the cross-entropy, 0-dim."""
    weights = (config.load_balance_loss, config.router_z_loss, config.router_entropy_loss)
    terms = [weight * losses[name] for name, weight in zip(NAMES, weights, strict=True) if weight]
    return torch.stack(terms).sum() if terms else losses[NAMES[0]].new_zeros(())


NAMES = ("load_balance", "router_z", "router_entropy")
