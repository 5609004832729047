"""The momentum's age on several ranks: FSDP2, tensor parallelism and ZeRO make the steps of one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

from danalab.optim import DistributedMuonAdamW, build_optimizer
from distributed.ranks import run_ranks

MEMORY = {"age": "follow(8, 1, 1, 0.2)", "fresh": 0.3}
CASES = [("adana", {}), ("muon", {"buffers": 2}), ("lion", {}), ("signum", {}), ("dana-muon", {}), ("d-muon", {}),
         ("manau", {"buffers": 3}), ("dana-star-mk4", {"buffers": 2}), ("auto-dana", {})]  # fmt: skip
HALF, STEPS = 4, 8


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 9), nn.Linear(9, 5, bias=False))


def steps(model: nn.Module, optimizer: Any, first: int, end: int) -> None:
    for step in range(first, end):
        draw = torch.Generator().manual_seed(step)
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("peak_lr", group["lr"]) * (1 - step / STEPS)
        for p in model.parameters():
            g = torch.randint(-50, 50, p.shape, generator=draw).float() / 64
            p.grad = distribute_tensor(g, p.device_mesh, p.placements) if hasattr(p, "placements") else g
        optimizer.step()


def whole(model: nn.Module) -> list[torch.Tensor]:
    return [(p.full_tensor() if hasattr(p, "full_tensor") else p).detach().clone() for p in model.parameters()]


def alone(name: str, settings: dict[str, Any]) -> list[torch.Tensor]:
    model = net()
    steps(model, build_optimizer(name, model, lr=0.02, **MEMORY, **settings), 0, STEPS)
    return whole(model)


def zero(name: str, settings: dict[str, Any]) -> list[torch.Tensor]:
    model = net()
    optimizer = DistributedMuonAdamW(model, lr=0.02, optimizer=name, bucket_mib=1e-4, **MEMORY, **settings)
    steps(model, optimizer, 0, HALF)
    again = DistributedMuonAdamW(model, lr=0.02, optimizer=name, bucket_mib=1.0, **MEMORY, **settings)
    again.load_state_dict(optimizer.state_dict())
    steps(model, again, HALF, STEPS)
    return whole(model)


def fsdp2(name: str, settings: dict[str, Any]) -> list[torch.Tensor]:
    model = net()
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    built = [build_optimizer(name, model, lr=0.02, **MEMORY, **settings) for _ in range(2)]
    steps(model, built[0], 0, HALF)
    set_optimizer_state_dict(model, built[1], get_optimizer_state_dict(model, built[0]))
    steps(model, built[1], HALF, STEPS)
    return whole(model)


def by_columns(name: str, settings: dict[str, Any]) -> list[torch.Tensor]:
    """Tensor parallelism."""
    model, mesh = net(), init_device_mesh("cpu", (2,))
    for module in model:
        module.weight = nn.Parameter(distribute_tensor(module.weight.detach(), mesh, [Shard(1)]))
    built = [build_optimizer(name, model, lr=0.02, **MEMORY, **settings) for _ in range(2)]
    steps(model, built[0], 0, HALF)
    built[1].load_state_dict(built[0].state_dict())
    steps(model, built[1], HALF, STEPS)
    return whole(model)


@pytest.mark.sample(4)
@pytest.mark.parametrize("mode", [zero, fsdp2, by_columns])
@pytest.mark.parametrize(("name", "settings"), CASES, ids=[name for name, _ in CASES])
def test_steps_and_reloads_are_those_of_one_process(name, settings, mode):
    if name in ("lion", "signum"):
        pytest.importorskip("pytorch_optimizer")
    want = alone(name, settings)
    for found in run_ranks(lambda rank, ranks: mode(name, settings), 2):
        for p, q in zip(found, want, strict=True):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
