"""Optimizers on DTensors: FSDP2 and tensor parallelism in any layout make the steps of one process."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from danalab.errors import UserError
from danalab.optim import DistributedMuonAdamW, build_optimizer
from distributed.ranks import run_ranks

MATRICES = ["muon", "d-muon", "manau", "dana-muon"]
NAMES = [
    *MATRICES,
    "adana",
    "dana-star-mk4",
    "ademamix",
    "adamw-decaying-wd",
    "auto-dana",
    "snoo",
    "adamw",
    "sgd",
    "lion",
]


class Tiny(nn.Module):
    """Dimensions that two and three ranks do not divide."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(23, 10)
        self.convolution = nn.Conv1d(5, 5, 3, padding=1)
        self.up = nn.Linear(10, 18)
        self.down = nn.Linear(18, 10, bias=False)
        self.small = nn.Linear(10, 1, bias=False)
        self.head = nn.Linear(10, 23, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.convolution(self.embedding(tokens))
        x = x + self.down(torch.relu(self.up(x)))
        return self.head(x * torch.sigmoid(self.small(x)))


def settings_of(name: str) -> dict[str, Any]:
    more = {"normalise": "normuon", "cautious_decay": True} if name == "dana-muon" else {}
    return {"lr": 0.02, "omega": 2.0, "horizon": 100, **more}


def train(model: nn.Module, optimizer: Any, rank: int, ranks: int, steps: range = range(3)) -> None:
    tokens = torch.randint(0, 23, (6, 12, 5), generator=torch.Generator().manual_seed(0))
    for step in steps:
        mine = tokens[step].chunk(ranks)[rank]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(mine).flatten(0, 1), mine.flatten()).backward()
        optimizer.step()


def full(tensor: Any) -> Tensor:
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def weights(model: nn.Module) -> list[Tensor]:
    return [full(p) for p in model.parameters()]


def sharded(how: str, ranks: int) -> tuple[nn.Module, int]:
    """The model in a layout, and the number of ranks with different data."""
    model = Tiny()
    if how == "fsdp":
        for part in (model.up, model.down):
            fully_shard(part)
        fully_shard(model)
        return model, ranks
    mesh = init_device_mesh(
        "cpu", (ranks // 2, 2), mesh_dim_names=("replicate" if how == "hsdp" else "shard", "tp")
    )
    if how == "hsdp":
        fully_shard(model, mesh=mesh)
        return model, ranks
    parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return fully_shard(model, mesh=mesh["shard"]), ranks // 2


def steps(rank: int, ranks: int, how: str, names: list[str]) -> dict[str, list[Tensor]]:
    found = {}
    for name in names:
        model, data = sharded(how, ranks)
        optimizer = build_optimizer(name, model, **settings_of(name))
        train(model, optimizer, rank * data // ranks, data)
        found[name] = weights(model)
    return found


@pytest.mark.parametrize(
    ("how", "ranks"),
    [
        pytest.param("fsdp", 2, marks=pytest.mark.slow),  # the same on three ranks is fast
        *(("fsdp", 3), ("hsdp", 4), ("tp", 2), ("fsdp+tp", 4)),
    ],
)
def test_every_optimizer_makes_the_steps_of_one_process(how, ranks):
    want = {}
    for name in (
        NAMES if how == "fsdp" else MATRICES + NAMES[4:6]
    ):  # here first: ranks import no library again
        model = Tiny()
        train(model, build_optimizer(name, model, **settings_of(name)), 0, 1)
        want[name] = weights(model)
    for found in run_ranks(steps, ranks, how, list(want)):
        for name in want:
            atol = 2e-3 if name == "lion" else 5e-5  # a sign may turn
            for p, q in zip(found[name], want[name], strict=True):
                torch.testing.assert_close(
                    p, q, rtol=0, atol=atol, msg=lambda text, name=name: f"{name}: {text}"
                )


def statistics(rank: int, ranks: int, how: str) -> list[dict[str, float]]:
    """`collect_stats` after three steps."""
    found = []
    for name in ("adana", "dana-star-mk4", "auto-dana"):
        model, data = (Tiny(), ranks) if how in ("one", "zero") else sharded(how, ranks)
        build: Any = (
            DistributedMuonAdamW if how == "zero" else lambda m, name, **own: build_optimizer(name, m, **own)
        )
        optimizer = build(model, name, **settings_of(name))
        train(model, optimizer, rank * data // ranks, data)
        found.append(optimizer.collect_stats())
    return found


@pytest.mark.parametrize(("how", "ranks"), [("fsdp", 3), ("hsdp", 4), ("tp", 2), ("fsdp+tp", 4), ("zero", 3)])
def test_statistics_are_of_all_coordinates(how, ranks):
    alone = statistics(0, 1, "one")
    assert alone[1].keys() == {"momentum_norm", "effective_time", "snr", "damped", "clipped", "tau"}
    for found in run_ranks(statistics, ranks, how):
        for ours, theirs in zip(found, alone, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-4)


OPTIONS: list[dict[str, Any]] = [
    {},
    *({"normalise": how} for how in ("rows", "columns", "normuon")),
    {"ns_steps": 6},
]


def options(rank: int, ranks: int, shapes: list[Any], layout: tuple[Any, ...]) -> list[Tensor]:
    """Two steps of each shape with each option on one parameter spread over a mesh; no layout: alone."""
    found = []
    for shape, own in product(shapes, OPTIONS):
        generator = torch.Generator().manual_seed(0)
        start, *grads = (torch.randn(shape, generator=generator) for _ in range(3))
        if layout:
            mesh = init_device_mesh("cpu", (ranks,) if len(layout) == 1 else (2, ranks // 2))
            start, *grads = (distribute_tensor(x, mesh, list(layout)) for x in (start, *grads))
        p = nn.Parameter(start)
        kind = "experts" if len(shape) == 3 and shape[2] > shape[0] else "matrix"
        optimizer = build_optimizer("d-muon", [{"params": [p], "kind": kind, **own}], lr=0.1)
        for g in grads:
            p.grad = g
            optimizer.step()
        found.append(full(p))
    return found


@pytest.mark.parametrize(
    ("ranks", "layout"),
    [(2, (Shard(0),)), (3, (Shard(0),)), (2, (Shard(1),)), (2, (Replicate(),)), (4, (Shard(0), Shard(1)))]
    + [(4, (Replicate(), Shard(0)))],
    ids=str,
)
@pytest.mark.parametrize(
    "shapes", [[(9, 5), (3, 4, 6)], pytest.param([(5, 9), (6, 4, 3)], marks=pytest.mark.slow)], ids=str
)
def test_any_layout_equals_the_whole_matrix(ranks, layout, shapes):
    want = options(0, 1, shapes, ())
    for found in run_ranks(options, ranks, shapes, layout):
        for own, p, q in zip(product(shapes, OPTIONS), found, want, strict=True):
            torch.testing.assert_close(p, q, rtol=0, atol=1e-6, msg=lambda text, own=own: f"{own}: {text}")


def saved(rank: int, ranks: int, folder: Path, names: list[str]) -> dict[str, list[Tensor]]:
    """Weights after four steps; a checkpoint of torch's after two."""
    found = {}
    for name in names:
        model, _ = sharded("fsdp", ranks)
        optimizer = build_optimizer(name, model, **settings_of(name))
        train(model, optimizer, 0, 1, range(2))
        values = {"model": model.state_dict(), "optim": get_optimizer_state_dict(model, optimizer)}
        dcp.save(values, checkpoint_id=folder / name)
        train(model, optimizer, 0, 1, range(2, 4))
        found[name] = weights(model)
    return found


def resumed(rank: int, ranks: int, folder: Path, names: list[str]) -> dict[str, list[Tensor]]:
    found = {}
    for name in names:
        model, _ = sharded("fsdp", ranks)
        optimizer = build_optimizer(name, model, **{**settings_of(name), "lr": 0.5})
        values = {"model": model.state_dict(), "optim": get_optimizer_state_dict(model, optimizer)}
        dcp.load(values, checkpoint_id=folder / name)
        model.load_state_dict(values["model"])
        set_optimizer_state_dict(model, optimizer, values["optim"])
        train(model, optimizer, 0, 1, range(2, 4))
        found[name] = weights(model)
    return found


@pytest.mark.parametrize(
    "names",
    [["dana-muon", "dana-star-mk4"], pytest.param(["muon", "adana"], marks=pytest.mark.slow)],
    ids=str,
)
def test_torchs_checkpoints_resume_on_any_number_of_ranks(names: list[str], tmp_path: Path):
    want = run_ranks(saved, 2, tmp_path, names)[0]
    for ranks in (2, 3):
        for found in run_ranks(resumed, ranks, tmp_path, names):
            for name in names:
                for p, q in zip(found[name], want[name], strict=True):
                    torch.testing.assert_close(
                        p, q, rtol=0, atol=0 if ranks == 2 else 2e-5, msg=lambda t, n=name: n + t
                    )


def refused(rank: int, ranks: int) -> list[str]:
    messages = []
    for build in (
        lambda m: DistributedMuonAdamW(m),
        lambda m: build_optimizer("soap", m),
        lambda m: build_optimizer("lamb", m),
    ):
        with pytest.raises(UserError) as caught:
            build(sharded("fsdp", ranks)[0])
        messages.append(str(caught.value))
    return messages


def test_what_needs_whole_tensors_is_refused_in_a_line():
    pytest.importorskip("pytorch_optimizer")
    for messages in run_ranks(refused, 2):
        assert "is a DTensor" in messages[0]
        assert all("needs whole tensors" in message for message in messages[1:])
