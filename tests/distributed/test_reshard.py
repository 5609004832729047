"""A checkpoint has no trace of who wrote it: any number of ranks in any arrangement reads any other's, bit by bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from danalab.optim import DistributedMuonAdamW, build_optimizer
from danalab.optim.tensor_shard import TensorShard
from danalab.train.checkpoint import tensors as flat
from danalab.train.checkpoint.saver import Saver
from danalab.train.checkpoint.store import META, CheckpointStore, verify
from danalab.train.parallel.world import RankLayout, World, join
from distributed.ranks import run_ranks

MODES = {
    1: ["single"],
    2: ["ddp", "zero", "fsdp", "tp"],
    4: ["ddp", "zero", "fsdp", "hsdp", "fsdp+tp"],
}
LAYOUTS = {
    "single": RankLayout(),
    "ddp": RankLayout("ddp"),
    "zero": RankLayout("zero"),
    "fsdp": RankLayout("fsdp"),
    "hsdp": RankLayout("fsdp", replicas=2),
    "tp": RankLayout("fsdp", tp_size=2),
    "fsdp+tp": RankLayout("fsdp", tp_size=2),
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6)  # 6 rows do not go into 4 ranks
        self.up = nn.Linear(6, 16, bias=False)
        self.down = nn.Linear(16, 6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block() for _ in range(1))
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def build(mode: str, world: World, optimizer: str) -> tuple[nn.Module, Any]:
    model: nn.Module = Tiny()
    if mode in ("tp", "fsdp+tp"):
        assert world.mesh is not None
        tp = world.mesh["tp"]
        for block in model.blocks:  # pyright: ignore[reportGeneralTypeIssues]
            parallelize_module(block, tp, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        for module in list(model.modules()):
            for name, p in list(module.named_parameters(recurse=False)):
                if not isinstance(p, DTensor):
                    setattr(module, name, nn.Parameter(distribute_tensor(p.detach(), tp, [Replicate()])))
    if mode in ("fsdp", "hsdp", "tp", "fsdp+tp"):
        assert world.mesh is not None
        names = [name for name in world.mesh.mesh_dim_names or () if name != "tp"]
        mesh = world.mesh[tuple(names)] if len(names) > 1 else world.mesh[names[0]]
        for block in model.blocks:  # pyright: ignore[reportGeneralTypeIssues]
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    if mode == "zero":
        return model, DistributedMuonAdamW(model, lr=1e-2, optimizer=optimizer)
    return model, build_optimizer(optimizer, model, lr=1e-2)


def train(model: nn.Module, optimizer: Any, steps: int = 2) -> None:
    x = torch.linspace(-1, 1, 24).view(4, 6)
    for _ in range(steps):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def local(model: nn.Module, optimizer: Any) -> dict[str, Tensor]:
    values, _ = flat.flatten(flat.state_of(model, optimizer))
    here = {k: v.values if isinstance(v, TensorShard) else v for k, v in values.items()}
    return {
        k: (v.to_local() if isinstance(v, DTensor) else v).clone()
        for k, v in here.items()
        if torch.is_tensor(v)
    }


def whole(model: nn.Module, optimizer: Any) -> dict[str, Tensor]:
    tensors = {flat.MODEL + name: value.detach() for name, value in model.state_dict().items()}
    names = flat.parameter_names(model, optimizer)
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {
            f"optim.state.{names[index]}.{key}": value
            for key, value in state.items()
            if torch.is_tensor(value)
        }
    return {k: (v.full_tensor() if isinstance(v, DTensor) else v).clone() for k, v in tensors.items()}


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)


def worlds(size: int, modes: list[str]) -> dict[str, World]:
    return {mode: join(LAYOUTS[mode], "cpu") for mode in modes} if size > 1 else {"single": World()}


def convert(rank: int, size: int, modes: list[str], first: str, folder: str, optimizer: str) -> None:
    """In each mode load what one process saved, and save it again."""
    for mode, world in worlds(size, modes).items():
        model, opt = build(mode, world, optimizer)
        flat.read(Path(first), model, opt)
        saver = Saver(CheckpointStore(Path(folder) / f"{size}-{mode}"), world=world)
        saver.save(2, flat.state_of(model, opt), {"step": 2, "random": f"of rank {rank}"}, wait=True)


def compare(rank: int, size: int, modes: list[str], first: str, folder: str, optimizer: str) -> list[str]:
    """In each mode load what every other mode saved; the names of those that differ from what one process has."""
    wrong = []
    for mode, world in worlds(size, modes).items():
        model, opt = build(mode, world, optimizer)
        expected: dict[str, Tensor] = {}
        for path in [Path(first), *sorted(Path(folder).glob("*/step-00000002"))]:
            with torch.no_grad():
                for p in model.parameters():
                    p.zero_()
            flat.read(path, model, opt)
            found = local(model, opt)
            if not expected:  # what one process saved: put together again, it must be what that process had
                expected = found
                assert same(whole(model, opt), torch.load(path / "whole.pt"))
            elif not same(found, expected):
                wrong.append(f"{path.parent.name} read by {size}-{mode}")
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "modes"),
    [
        ("adana", MODES),
        pytest.param("d-muon", {1: ["single"], 2: ["zero", "fsdp"]}, marks=pytest.mark.slow),
    ],
)
def test_every_arrangement_reads_every_other_bit_by_bit(
    tmp_path: Path, optimizer: str, modes: dict[int, list[str]]
):
    model, opt = build("single", World(), optimizer)
    train(model, opt)
    saver = Saver(CheckpointStore(tmp_path / "first"))
    saver.save(2, flat.state_of(model, opt), {"step": 2, "random": None}, wait=True)
    first = saver.store.path(2)
    torch.save(whole(model, opt), first / "whole.pt")

    def everywhere(fn: Any) -> list[Any]:
        arguments = (str(first), str(tmp_path / "all"), optimizer)
        return [
            fn(0, 1, modes[1], *arguments) if size == 1 else run_ranks(fn, size, modes[size], *arguments)
            for size in modes
        ]

    everywhere(convert)
    saved = sorted((tmp_path / "all").iterdir())
    assert len(saved) == sum(map(len, modes.values()))
    for folder in saved:
        verify(folder / "step-00000002")
        ranks = int(folder.name[0])
        meta = json.loads((folder / "step-00000002" / META).read_text())
        assert meta.get("random_by_rank", [meta["random"]]) == [f"of rank {rank}" for rank in range(ranks)]
    assert everywhere(compare) == [[] if size == 1 else [[]] * size for size in modes]


class Wide(nn.Module):
    """Large enough that ZeRO cuts its matrix, and not where a row ends."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.matrix = nn.Linear(70, 100)
        self.head = nn.Linear(100, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.matrix(x)))


def read_own(rank: int, size: int, first: str, optimizer: str) -> tuple[bool, int]:
    """Whether what a rank goes on with is what one process saved, and how many elements of state it read."""
    model = Wide()
    opt = DistributedMuonAdamW(model, lr=1e-2, optimizer=optimizer)
    read, load = [], flat._load

    def watched(target: Any, folder: Path) -> Any:
        read.extend(
            block.numel()
            for value in target.values()
            for _, block in (value.blocks() if isinstance(value, TensorShard) else [])
        )
        return load(target, folder)

    flat._load = watched
    flat.read(Path(first), model, opt)
    return same(whole(model, opt), torch.load(Path(first) / "whole.pt")), sum(read)


@pytest.mark.sample(1)
@pytest.mark.parametrize("optimizer", ["adana", "d-muon", "adamw"])
def test_ranks_of_zero_read_the_state_that_they_own_and_no_more(tmp_path: Path, optimizer: str):
    model = Wide()
    opt: Any = build_optimizer(optimizer, model, lr=1e-2)
    model(torch.linspace(-1, 1, 280).view(4, 70)).square().mean().backward()
    opt.step()
    values, _ = flat.flatten(flat.state_of(model, opt))
    saver = Saver(CheckpointStore(tmp_path / "first"))
    saver.save(2, flat.state_of(model, opt), {"step": 2}, wait=True)
    torch.save(whole(model, opt), saver.store.path(2) / "whole.pt")
    state = sum(
        v.numel() for k, v in values.items() if k.startswith("optim.") and isinstance(v, Tensor) and v.ndim
    )
    found = run_ranks(read_own, 3, str(saver.store.path(2)), optimizer)
    assert all(ok for ok, _ in found)
    assert sum(read for _, read in found) == state
    assert max(read for _, read in found) < state
