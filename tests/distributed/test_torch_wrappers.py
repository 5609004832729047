"""torch's own sharding of older kinds: FSDP1 and ZeroRedundancyOptimizer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.optim import ZeroRedundancyOptimizer

from danalab.optim import ADana, DanaMuon
from distributed.ranks import run_ranks


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 10))


def train(net: nn.Module, optimizer: Any, steps: int = 3) -> None:
    x = torch.arange(6)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), x).backward()
        optimizer.step()


def rank(rank: int, _: int) -> bool:
    for build in (ADana, DanaMuon):
        for original in (True, False):
            flat = FullyShardedDataParallel(model(), device_id=torch.device("cpu"), use_orig_params=original)
            with pytest.raises(ValueError, match="use FSDP2"):
                build(flat)
    shared, alone = model(), model()
    settings: dict[str, Any] = {"lr": 1e-2, "omega": 4.0, "horizon": 20}
    train(shared, ZeroRedundancyOptimizer(shared.parameters(), ADana, **settings))
    train(alone, ADana(alone.parameters(), **settings))
    return all(torch.equal(p, q) for p, q in zip(shared.parameters(), alone.parameters(), strict=True))


def test_flat_shards_are_refused_and_torch_zero_makes_the_same_steps():
    assert all(run_ranks(rank, 2))
