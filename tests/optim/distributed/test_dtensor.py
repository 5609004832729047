"""Sharded parameters: each rank updates its part, and all parts together are the step of one process."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from danalab.optim import AdamWDecayingWD, ADana, DanaStarMK4, build_optimizer
from distributed.ranks import run_ranks

FLAGS = {"eager": {"fused": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 5), nn.LayerNorm(5), nn.Linear(5, 3))  # nothing divides by two


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
    for step in range(steps):
        x = torch.randn(4, 7, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()


def full(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


@pytest.mark.sample(2)
@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
@pytest.mark.parametrize("name", ["adana", "dana-star-mk4", "adamw-decaying-wd"])
def test_fsdp2_step_stats_and_checkpoint_state_equal_one_process(name, flags):
    settings = {"lr": 0.01, "omega": 2.0, "horizon": 50, **flags}

    def rank(rank: int, world_size: int):
        model = net()
        mesh = init_device_mesh("cpu", (world_size,))
        fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = build_optimizer(name, model, **settings)
        train(model, optimizer)
        stats = {"rms": optimizer.update_rms(), **optimizer.collect_stats()} if name != "adamw-decaying-wd" else {}
        state = get_optimizer_state_dict(model, optimizer)["state"]
        moments = {key: full(entry["exp_avg_sq"]) for key, entry in state.items()}
        return [full(p) for p in model.parameters()], stats, moments

    model = net()
    optimizer = build_optimizer(name, model, **settings)
    train(model, optimizer)
    for params, stats, moments in run_ranks(rank, 2):
        for found, p in zip(params, model.parameters(), strict=True):
            torch.testing.assert_close(found, p.detach(), rtol=1e-6, atol=1e-6)
        for key, p in model.named_parameters():
            torch.testing.assert_close(moments[key], optimizer.state[p]["exp_avg_sq"])
        if stats:
            want = {"rms": optimizer.update_rms(), **optimizer.collect_stats()}
            torch.testing.assert_close(stats, want, rtol=1e-5, atol=1e-6)


@pytest.mark.sample(1)
@pytest.mark.parametrize("cls", [ADana, DanaStarMK4, AdamWDecayingWD])
def test_two_dimensional_meshes_and_partial_gradients_take_the_whole_step(cls):
    generator = torch.Generator().manual_seed(0)
    value, grad = torch.randn(5, 6, generator=generator), torch.randn(5, 6, generator=generator)

    def rank(rank: int, world_size: int):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        sharded = distribute_tensor(value, mesh, [Shard(0), Shard(1)]).requires_grad_()
        sharded.grad = distribute_tensor(grad, mesh, [Shard(0), Shard(1)])
        copied = distribute_tensor(value, mesh["tensor"], [Replicate()]).requires_grad_()
        part = grad * 0.25 if mesh["tensor"].get_local_rank() else grad * 0.75
        copied.grad = DTensor.from_local(part, mesh["tensor"], [Partial()])
        cls([sharded, copied], lr=0.1, fused=False).step()
        return full(sharded), full(copied)

    alone = value.clone().requires_grad_()
    alone.grad = grad
    cls([alone], lr=0.1, fused=False).step()
    for found in run_ranks(rank, 4):
        for whole in found:
            torch.testing.assert_close(whole, alone.detach())


def test_ranks_agree_that_a_step_is_no_rehearsal():
    """With learning rate 0 one rank's shard of the gradient may be zero: its clock must go on with the others'."""

    def rank(rank: int, world_size: int):
        mesh = init_device_mesh("cpu", (world_size,))
        p = distribute_tensor(torch.ones(4), mesh, [Shard(0)]).requires_grad_()
        p.grad = distribute_tensor(torch.tensor([0.0, 0.0, 0.0, 1.0]), mesh, [Shard(0)])
        optimizer = ADana([p], lr=0.1)
        optimizer.param_groups[0]["lr"] = 0.0
        optimizer.step()
        return optimizer.state[p]["step"]

    assert run_ranks(rank, 2) == [1.0, 1.0]
