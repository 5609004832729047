"""torch's own sharding: FSDP1 with original parameters, and ZeroRedundancyOptimizer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.optim import ZeroRedundancyOptimizer

from danalab.errors import UserError
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


def test_flat_shards_of_fsdp1_decay_as_their_parameters_do_and_matrices_are_refused():
    def rank(rank: int, _: int) -> tuple[float, str, str]:
        device = torch.device("cpu")
        sharded, whole = FullyShardedDataParallel(model(), device_id=device, use_orig_params=True), model()
        settings = {"lr": 1e-2, "weight_decay": 0.01}
        train(sharded, ADana(sharded, **settings)), train(whole, ADana(whole, **settings))
        messages = []
        for net in (sharded, FullyShardedDataParallel(model(), device_id=device)):
            with pytest.raises(UserError) as caught:
                DanaMuon(net)
            messages.append(str(caught.value))
        with FullyShardedDataParallel.summon_full_params(sharded):
            pairs = zip(sharded.parameters(), whole.parameters(), strict=True)
            return (max((p - q).abs().max().item() for p, q in pairs), *messages)

    for difference, flat, joined in run_ranks(rank, 2):
        assert difference < 1e-5
        assert "fully_shard" in flat
        assert "use_orig_params=True" in joined


def test_torch_zero_keeps_the_decay_of_groups_and_matrices_are_refused():
    def groups(net: nn.Module) -> list[dict[str, Any]]:
        ps = list(net.parameters())
        return [
            {"params": [p for p in ps if p.ndim > 1]},
            {"params": [p for p in ps if p.ndim < 2], "weight_decay": 0.0},
        ]

    def rank(rank: int, _: int) -> bool:
        shared, alone = model(), model()
        settings: dict[str, Any] = {"lr": 1e-2, "omega": 4.0, "horizon": 20}
        train(shared, ZeroRedundancyOptimizer(groups(shared), ADana, **settings))
        train(alone, ADana(groups(alone), **settings))
        with pytest.raises(UserError, match="DistributedMuonAdamW"):
            ZeroRedundancyOptimizer(shared.parameters(), DanaMuon, lr=1e-2)
        return all(torch.equal(p, q) for p, q in zip(shared.parameters(), alone.parameters(), strict=True))

    assert all(run_ranks(rank, 2))
