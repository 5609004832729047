"""Moments of fewer bytes on shards: near one process, resumed bitwise from checkpoints, or refused in a line."""

from __future__ import annotations

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from danalab.errors import UserError
from danalab.optim import ADana, DistributedMuonAdamW, build_optimizer
from danalab.optim.step.state_formats import REST
from distributed.ranks import run_ranks

SETTINGS = {"lr": 0.01, "omega": 2.0, "horizon": 50}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(300, 5), nn.LayerNorm(5), nn.Linear(5, 3))  # two blocks; nothing divides by two


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        x = torch.randn(4, 300, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()


def full(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


@pytest.mark.slow
@pytest.mark.parametrize("state_dtype", ["bf16+8", "8bit"])
def test_fsdp2_is_near_one_process_and_goes_on_bitwise_from_its_checkpoint(state_dtype, tmp_path):
    def build(world_size: int):
        model = net()
        fully_shard(model, mesh=init_device_mesh("cpu", (world_size,)))
        return model, build_optimizer("dana-star-mk4", model, state_dtype=state_dtype, **SETTINGS)

    def rank(rank: int, world_size: int):
        model, optimizer = build(world_size)
        train(model, optimizer, range(3))
        saved = {"model": model.state_dict(), "optim": get_optimizer_state_dict(model, optimizer)}
        dcp.save(saved, checkpoint_id=tmp_path)
        train(model, optimizer, range(3, 5))
        other, resumed = build(world_size)
        target = {"model": other.state_dict(), "optim": get_optimizer_state_dict(other, resumed)}
        dcp.load(target, checkpoint_id=tmp_path)
        other.load_state_dict(target["model"])
        set_optimizer_state_dict(other, resumed, target["optim"])
        train(other, resumed, range(3, 5))
        return [full(p) for p in model.parameters()], [full(p) for p in other.parameters()]

    model = net()
    start = [p.detach().clone() for p in model.parameters()]
    train(model, build_optimizer("dana-star-mk4", model, state_dtype=state_dtype, **SETTINGS), range(5))
    for params, resumed in run_ranks(rank, 2):
        for before, found, again, p in zip(start, params, resumed, model.parameters(), strict=True):
            assert torch.equal(found, again)
            moved = (p.detach() - before).square().mean().sqrt()
            assert (found - p.detach()).square().mean().sqrt() < {"bf16+8": 1e-3, "8bit": 0.1}[state_dtype] * moved


@pytest.mark.slow
def test_zero_with_24_bits_is_near_one_process_and_its_state_is_a_whole_one():
    settings = {"state_dtype": "bf16+8", **SETTINGS}

    def rank(rank: int, world_size: int):
        model = net()
        optimizer = DistributedMuonAdamW(model, optimizer="adana", **settings)
        train(model, optimizer, range(3))
        return [full(p) for p in model.parameters()], optimizer.state_dict()

    model = net()
    start = [p.detach().clone() for p in model.parameters()]
    train(model, build_optimizer("adana", model, **settings), range(3))
    for params, saved in run_ranks(rank, 2):
        for before, found, p in zip(start, params, model.parameters(), strict=True):
            moved = (p.detach() - before).square().mean().sqrt()
            assert (found - p.detach()).square().mean().sqrt() < 1e-3 * moved
        alone = build_optimizer("adana", net(), **settings)
        alone.load_state_dict(saved)
        assert alone.state_dict()["state"][0]["exp_avg_high"].shape == (5, 300)


def test_what_cuts_the_blocks_of_8_bits_is_refused():
    with pytest.raises(UserError, match="state_dtype 8bit has scales"):
        DistributedMuonAdamW(net(), optimizer="adana", state_dtype="8bit")

    def rank(rank: int, world_size: int):
        mesh = init_device_mesh("cpu", (world_size,))
        p = distribute_tensor(torch.ones(4, 6), mesh, [Shard(1)]).requires_grad_()
        ADana([p], state_dtype="bf16+8")
        try:
            ADana([p], state_dtype="8bit")
        except UserError as error:
            return str(error)

    assert all("tensor parallelism cuts the rows" in message for message in run_ranks(rank, 2))


@pytest.mark.slow
def test_further_bits_of_bfloat16_weights_are_in_the_states_of_zero_and_fsdp2():
    settings = {"state_dtype": "bf16+8", **SETTINGS}

    def take_steps(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        for step in range(3):
            x = torch.randn(4, 300, generator=torch.Generator().manual_seed(step)).bfloat16()
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()
        return [full(p) for p in model.parameters()]

    def rank(rank: int, world_size: int):
        by_zero, by_fsdp = net().bfloat16(), net().bfloat16()
        zero = DistributedMuonAdamW(by_zero, optimizer="adana", **settings)
        fully_shard(by_fsdp, mesh=init_device_mesh("cpu", (world_size,)))
        fsdp = build_optimizer("adana", by_fsdp, **settings)
        found = take_steps(by_zero, zero), take_steps(by_fsdp, fsdp)
        return *found, zero.state_dict()["state"], full(fsdp.state[next(by_fsdp.parameters())][REST])

    alone = net().bfloat16()
    optimizer = build_optimizer("adana", alone, **settings)
    want = take_steps(alone, optimizer)
    for by_zero, by_fsdp, saved, rest in run_ranks(rank, 2):
        for found, again, p in zip(by_zero, by_fsdp, want, strict=True):
            torch.testing.assert_close(found, p, rtol=0.03, atol=3e-3)
            torch.testing.assert_close(again, p, rtol=0.03, atol=3e-3)
        assert saved[0][REST].shape == rest.shape == (5, 300)
        resumed = build_optimizer("adana", net().bfloat16(), **settings)
        resumed.load_state_dict({**resumed.state_dict(), "state": saved})
