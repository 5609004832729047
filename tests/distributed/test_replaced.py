"""accelerate builds nothing anew under FSDP2: it shards the model and puts the shards into the optimizer's groups."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from danalab.optim import build_optimizer
from distributed.ranks import run_ranks


def trained(name: str, replaced: bool) -> list[torch.Tensor]:
    """Whole parameters after three steps; the optimizer is built before sharding, or, as it should be, after."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3))
    names = {p: key for key, p in model.named_parameters()}
    optimizer = build_optimizer(name, model, lr=1e-2) if replaced else None
    # As accelerate does: placeholders first, so that the whole parameters are not kept alive.
    places = [[names[p] for p in group["params"]] for group in optimizer.param_groups] if optimizer else []
    for group in optimizer.param_groups if optimizer else []:
        group["params"] = [torch.empty(1) for _ in group["params"]]
    fully_shard(model)
    if optimizer is None:
        optimizer = build_optimizer(name, model, lr=1e-2)
    for group, keys in zip(optimizer.param_groups, places, strict=False):
        group["params"] = [model.get_parameter(key) for key in keys]
    for step in range(3):
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(step))
        model(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.full_tensor().detach() for p in model.parameters()]


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["adana", "adamw", "muon", "soap", "snoo"])
def test_an_optimizer_built_before_sharding_trains_the_shards(name):
    def both(rank: int, world_size: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        return trained(name, replaced=True), trained(name, replaced=False)

    for swapped, built in run_ranks(both, 2):
        assert all(torch.equal(p, q) for p, q in zip(swapped, built, strict=True))
