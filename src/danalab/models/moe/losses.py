"""The router's losses, from sums over any part of a global batch.

    load balance   E sum_i f_i P_i      f_i: share of all choices of expert i; P_i: its mean probability
    router z       mean(logsumexp(logits)^2)
    entropy        sum_i P_i log P_i    minus the entropy of the mean distribution

Each is averaged over the layers with experts. Even use gives a load balance of 1 for every K (Switch Transformers, eq.
4 to 6, for K = 1). f carries no gradient, so that for known f the load balance is a sum over tokens, and so is the
entropy, to first order, for known log P. A trainer takes both from the previous step's global batch: the gradient is
then the same for any number of micro-batches and ranks, while f of each micro-batch would make it depend on how the
batch is divided. By default f and P are those of the pass itself.

Shapes: S layers that have experts, E experts.
Sources: arXiv 2101.03961 (load balance), 2202.08906 (router z-loss), 2501.11873 (why f of the global batch).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from danalab.models.config import ModelConfig
from danalab.models.moe.mixture import Routing


class Usage(NamedTuple):
    """The use of experts in a whole batch; [S, E] each, rows sum to 1."""

    load: Tensor
    """Share of all choices: f."""
    probability: Tensor
    """Mean probability: P."""

    @classmethod
    def of(cls, routing: Routing) -> "Usage":
        """The usage from the sums of a whole batch, [S, ...]."""
        counts, probabilities = routing.counts, routing.probabilities.detach()
        return cls(counts / counts.sum(-1, keepdim=True), probabilities / probabilities.sum(-1, keepdim=True))

    @classmethod
    def even(cls, layers: int, n_experts: int, device: torch.device | str) -> "Usage":
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
