"""Matrices that are sharded over ranks are orthogonalised whole: FSDP2 and tensor parallelism equal one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from danalab.errors import UserError
from danalab.optim import DistributedMuonAdamW, build_optimizer
from distributed.ranks import run_ranks

NAMES = ["muon", "d-muon", "manau"]


class Tiny(nn.Module):
    """Dimensions that two and three ranks do not divide."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(23, 10)
        self.convolution = nn.Conv1d(5, 5, 3, padding=1)
        self.up = nn.Linear(10, 17)
        self.down = nn.Linear(17, 10, bias=False)
        self.small = nn.Linear(10, 1, bias=False)
        self.head = nn.Linear(10, 23, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.convolution(self.embedding(tokens))
        x = x + self.down(torch.relu(self.up(x)))
        return self.head(x * torch.sigmoid(self.small(x)))


def train(model: nn.Module, name: str, rank: int, ranks: int, steps: int = 3) -> Any:
    optimizer = build_optimizer(name, model, lr=0.02, weight_decay=0.1)
    tokens = torch.randint(0, 23, (steps, 6, 5), generator=torch.Generator().manual_seed(0))
    for step in range(steps):
        mine = tokens[step].chunk(ranks)[rank]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(mine).flatten(0, 1), mine.flatten()).backward()
        optimizer.step()
    return optimizer


def tiny() -> Tiny:
    torch.manual_seed(0)
    return Tiny()


def full(tensor: Any) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def fsdp(rank: int, ranks: int, name: str) -> Any:
    model = tiny()
    for part in (model.up, model.down):
        fully_shard(part)
    fully_shard(model)
    optimizer = train(model, name, rank, ranks)
    parameters = dict(model.named_parameters())
    buffers = [full(optimizer.state[parameters[f"{part}.weight"]]["momentum_buffer"]) for part in ("up", "small")]
    return [full(p).detach() for p in parameters.values()], buffers


@pytest.mark.sample(2)
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_fsdp2_equals_one_process(name, ranks):
    alone = tiny()
    optimizer = train(alone, name, 0, 1)
    buffers = [optimizer.state[part.weight]["momentum_buffer"] for part in (alone.up, alone.small)]
    for found, found_buffers in run_ranks(fsdp, ranks, name):
        for p, q in zip(found, alone.parameters(), strict=True):
            assert torch.allclose(p, q, rtol=0, atol=1e-5)
        for b, c in zip(found_buffers, buffers, strict=True):
            assert torch.allclose(b, c, rtol=0, atol=1e-5)


def one_step(rank: int, ranks: int, shape: tuple[int, ...], layout: tuple[Any, ...], **settings: Any) -> Tensor:
    """A step on one parameter spread over a mesh in some layout."""
    dimensions = (ranks,) if len(layout) == 1 else (2, ranks // 2)
    mesh = init_device_mesh("cpu", dimensions)
    generator = torch.Generator().manual_seed(0)
    p = nn.Parameter(distribute_tensor(torch.randn(shape, generator=generator), mesh, list(layout)))
    p.grad = distribute_tensor(torch.randn(shape, generator=generator), mesh, list(layout))
    build_optimizer("d-muon", [{"params": [p], "use_muon": True, **settings}], lr=0.1).step()
    return full(p.detach())


@pytest.mark.sample(3)
@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (6, 4, 3)])
@pytest.mark.parametrize(
    ("ranks", "layout"),
    [(2, (Shard(0),)), (2, (Shard(1),)), (2, (Replicate(),)), (4, (Shard(0), Shard(1))), (4, (Replicate(), Shard(0)))],
    ids=str,
)
def test_any_layout_equals_the_whole_matrix(ranks, layout, shape):
    generator = torch.Generator().manual_seed(0)
    p = nn.Parameter(torch.randn(shape, generator=generator))
    p.grad = torch.randn(shape, generator=generator)
    build_optimizer("d-muon", [{"params": [p], "use_muon": True}], lr=0.1).step()
    for found in run_ranks(one_step, ranks, shape, layout):
        assert torch.allclose(found, p.detach(), rtol=0, atol=1e-6)


OPTIONS = [{"heads": 3}, {"normalise": "rows"}, {"normalise": "columns"}, {"hold_norm": True},
           {"heads": 2, "normalise": "rows-columns", "hold_norm": True}]  # fmt: skip


@pytest.mark.parametrize(("ranks", "layout"), [(2, (Shard(0),)), (2, (Shard(1),)), (4, (Shard(0), Shard(1)))], ids=str)
def test_options_around_a_sharded_matrix_are_those_of_the_whole(ranks, layout):
    """Twelve rows of five: heads and columns are cut."""
    generator = torch.Generator().manual_seed(0)
    start, g = (torch.randn(12, 5, generator=generator) for _ in range(2))

    def every(rank: int, ranks: int) -> list[Tensor]:
        return [one_step(rank, ranks, (12, 5), layout, **options) for options in OPTIONS]

    for found in run_ranks(every, ranks):
        for options, each in zip(OPTIONS, found, strict=True):
            p = nn.Parameter(start.clone())
            p.grad = g.clone()
            build_optimizer("d-muon", [{"params": [p], "use_muon": True, **options}], lr=0.1).step()
            assert torch.allclose(each, p.detach(), rtol=0, atol=1e-6), options


def through_checkpoint_helpers(rank: int, ranks: int) -> bool:
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    model, twin = tiny(), tiny()
    fully_shard(model)
    fully_shard(twin)
    optimizer = train(model, "muon", rank, ranks, steps=1)
    before = [full(p).clone() for p in model.parameters()]
    saved = get_optimizer_state_dict(model, optimizer)
    other = build_optimizer("muon", twin, lr=0.5)
    set_optimizer_state_dict(twin, other, saved)
    unchanged = all(torch.equal(full(p), q) for p, q in zip(model.parameters(), before, strict=True))
    same = all(
        torch.equal(full(optimizer.state[p][key]), full(other.state[q][key]))
        for p, q in zip(model.parameters(), twin.parameters(), strict=True)
        for key in optimizer.state[p]
    )
    return unchanged and same and other.param_groups[0]["lr"] == 0.02


def test_torch_checkpoint_helpers_round_trip_under_fsdp2():
    assert run_ranks(through_checkpoint_helpers, 2) == [True, True]


def zero_on_shards(rank: int, ranks: int) -> str:
    model = tiny()
    fully_shard(model)
    with pytest.raises(UserError) as caught:
        DistributedMuonAdamW(model, optimizer="d-muon")
    return str(caught.value)


def test_zero_refuses_what_is_sharded_already():
    for message in run_ranks(zero_on_shards, 2):
        assert "is a DTensor already; use 'd-muon' itself with FSDP2" in message
