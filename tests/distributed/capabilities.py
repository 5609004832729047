"""What every optimizer of the registry does in every parallel mode, measured on gloo ranks against one process.

One process group a mode and number of ranks runs all optimizers. Gradients have few bits, so that averages over ranks
are exact and what differs is the optimizer's doing.
"""

from __future__ import annotations

import tempfile
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from danalab.optim import DistributedMuonAdamW, build_optimizer, optimizer_spec
from danalab.optim.distributed import why_not
from distributed.ranks import run_ranks

STEPS, MORE = 3, 2
RANKS = {"single": (1, 1), "ddp": (2, 4), "zero": (2, 3), "fsdp": (2, 3), "fsdp+tp": (4, 2)}
"""Ranks that take the first steps and write a checkpoint, and those that read it and go on."""
BAR = 1e-5
"""Largest allowed difference of a parameter from one process's, relative to the largest update of that parameter."""

SHAPES = {
    "embedding.weight": (65, 33),
    "blocks.0.up.weight": (65, 33),
    "blocks.0.up.bias": (65,),
    "blocks.0.down.weight": (32, 16),
    "blocks.1.thin.weight": (3, 40),
    "norm.weight": (33,),
    "head.weight": (67, 32),
}
"""Odd ones that no number of ranks divides, even ones, and one with less rows than ranks."""
TP = {"embedding.weight": 0, "blocks.0.up.weight": 0, "blocks.0.up.bias": 0, "blocks.0.down.weight": 1}
"""Dimension that tensor parallelism cuts; the others are on all ranks of its mesh."""


class Layer(nn.Module):
    """Named parameters whose gradients are what `forward` is given."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], generator: torch.Generator):
        super().__init__()
        inner: dict[str, dict[str, tuple[int, ...]]] = {}
        for name, shape in shapes.items():
            head, _, rest = name.partition(".")
            if rest:
                inner.setdefault(head, {})[rest] = shape
            else:
                self.register_parameter(name, nn.Parameter(0.1 * torch.randn(shape, generator=generator)))
        for name, below in inner.items():
            self.add_module(name, Layer(below, generator))

    def forward(self, gradients: Mapping[str, Tensor], prefix: str = "") -> Tensor:
        total = torch.zeros(())
        for name, p in self.named_parameters(recurse=False):
            total = total + (p * gradients[prefix + name]).sum()
        for name, child in self.named_children():
            total = total + child(gradients, f"{prefix}{name}.")
        return total


def probe() -> Layer:
    return Layer(SHAPES, torch.Generator().manual_seed(0))


def gradients(step: int, rank: int = 0, ranks: int = 1) -> dict[str, Tensor]:
    """Gradients of a rank; their mean over ranks is the same for any number of them, to the last bit.

    They keep their direction from step to step for the most part, as estimates of distance need it, and are sparse.
    """
    generator, steady = torch.Generator().manual_seed(1000 + step), torch.Generator().manual_seed(1)
    found = {}
    for name, shape in SHAPES.items():
        mean = torch.randint(-64, 64, shape, generator=generator) + torch.randint(-128, 128, shape, generator=steady)
        mean = mean * torch.randint(0, 2, shape, generator=generator)
        off = torch.randint(-64, 64, shape, generator=generator)
        sign = 0 if rank == ranks - 1 and ranks % 2 else 1 - 2 * (rank % 2)
        found[name] = (mean + sign * off).float() / 256
    return found


SETTINGS: dict[str, dict[str, Any]] = {
    "soap": {"precondition_frequency": 2},
    "kl-soap": {"precondition_frequency": 2},
    "scion": {"radius": 1.0, "other_radius": 4.0},
    "prodigy": {"d0": 0.001},
    "sophia": {"hessian_interval": 2},
    "snoo": {"k": 2},
    "snoo-dana": {"k": 2},
}
"""Beyond defaults: for few steps to show all that an optimizer does."""

RATES = {"prodigy": 1.0}
"""Learning rates, where `LR` is none that shows anything."""


def settings_of(name: str) -> dict[str, Any]:
    spec = optimizer_spec(name)
    found = dict(SETTINGS.get(name, {}))
    if "weight_decay" in spec.settings:
        found["weight_decay"] = 0.1
    if "ns_dtype" in spec.settings:
        found["ns_dtype"] = "float32"
    return found


LR = 0.01


def build(name: str, model: nn.Module, mode: str) -> Any:
    lr = RATES.get(name, LR)
    if mode == "zero":
        return DistributedMuonAdamW(model, lr=lr, optimizer=name, bucket_mib=0.01, **settings_of(name))
    return build_optimizer(name, model, lr=lr, **settings_of(name))


def model_for(mode: str, ranks: int) -> nn.Module:
    model = probe()
    if mode == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if mode == "fsdp":
        mesh = init_device_mesh("cpu", (ranks,))
        for block in model.blocks.children():  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    if mode == "fsdp+tp":
        mesh = init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("shard", "tp"))
        for module_name, module in model.named_modules():
            for name, p in list(module.named_parameters(recurse=False)):
                dim = TP.get(f"{module_name}.{name}")
                placements = [Replicate() if dim is None else Shard(dim)]
                module.register_parameter(name, nn.Parameter(distribute_tensor(p.detach(), mesh["tp"], placements)))
        for block in model.blocks.children():  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
            fully_shard(block, mesh=mesh["shard"])
        fully_shard(model, mesh=mesh["shard"])
    return model


def give_gradients(model: nn.Module, mode: str, step: int, rank: int, ranks: int) -> None:
    if mode in ("ddp", "fsdp"):
        model(gradients(step, rank, ranks)).backward()
        return
    mean = gradients(step) if mode in ("single", "fsdp+tp") else gradients(step, rank, ranks)
    for name, p in model.named_parameters():
        g = mean[name]
        if isinstance(p, DTensor):
            from danalab.optim.distributed.dtensor.layout import cut, spread_like

            p.grad = spread_like(cut(g, p.device_mesh, p.placements).contiguous(), p)
        else:
            p.grad = g


def whole(model: nn.Module) -> dict[str, Tensor]:
    return {
        name.removeprefix("module."): (p.full_tensor() if isinstance(p, DTensor) else p).detach().clone()
        for name, p in model.named_parameters()
    }


def steps(name: str, model: nn.Module, optimizer: Any, mode: str, which: range, rank: int, ranks: int) -> None:
    spec = optimizer_spec(name)
    for step in which:
        optimizer.zero_grad()
        if spec.hessian and optimizer.hessian_is_due():
            give_gradients(model, mode, 100 + step, rank, ranks)
            optimizer.update_hessian(1000.0)
            optimizer.zero_grad()
        give_gradients(model, mode, step, rank, ranks)
        optimizer.step()


def evaluated(name: str, model: nn.Module, optimizer: Any) -> dict[str, Tensor]:
    """The weights that are evaluated."""
    if not optimizer_spec(name).train_eval:
        return whole(model)
    optimizer.eval()
    found = whole(model)
    optimizer.train()
    return found


def alone(name: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Parameters after the first steps and after all, by one process that never stopped."""
    model = probe()
    optimizer = build(name, model, "single")
    steps(name, model, optimizer, "single", range(STEPS), 0, 1)
    middle = evaluated(name, model, optimizer)
    steps(name, model, optimizer, "single", range(STEPS, STEPS + MORE), 0, 1)
    end = whole(model)
    for key, p in whole(probe()).items():
        assert (middle[key] - p).abs().max() > 1e-4, f"{name} hardly moves {key}: nothing could be seen in that"
        assert (end[key] - middle[key]).abs().max() > 1e-4, f"{name} hardly moves {key}: nothing could be seen in that"
    return middle, end


def difference(found: Mapping[str, Tensor], want: Mapping[str, Tensor]) -> float:
    """Largest difference of all parameters, each relative to its largest update."""
    start = whole(probe())
    worst = 0.0
    for name, p in want.items():
        update = float((p - start[name]).abs().max()) or 1.0
        worst = max(worst, float((found[name] - p).abs().max()) / update)
    return worst


def first_part(rank: int, ranks: int, mode: str, wants: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Steps of each optimizer, and a checkpoint of each: how far from one process, or why not."""
    warnings.simplefilter("ignore")
    found: dict[str, Any] = {}
    for name, (middle, _) in wants.items():
        try:
            model = model_for(mode, ranks)
            optimizer = build(name, model, mode)
            rehearsed = whole(model)
            get_optimizer_state_dict(model, optimizer)
            if not all(torch.equal(p, rehearsed[key]) for key, p in whole(model).items()):
                raise AssertionError("asking for the state changed parameters")
            steps(name, model, optimizer, mode, range(STEPS), rank, ranks)
            found[name] = difference(evaluated(name, model, optimizer), middle)
            saved = {"optimizer": get_optimizer_state_dict(model, optimizer), "model": whole(model)}
            dcp.save(saved, checkpoint_id=folder / name)
        except Exception:
            found[name] = traceback.format_exc()
            if ranks > 1:
                raise
    return found


def second_part(rank: int, ranks: int, mode: str, wants: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The checkpoints read by other ranks, and the steps after them."""
    warnings.simplefilter("ignore")
    found: dict[str, Any] = {}
    for name, (_, end) in wants.items():
        try:
            model = model_for(mode, ranks)
            optimizer = build(name, model, mode)
            saved = {"optimizer": get_optimizer_state_dict(model, optimizer), "model": whole(model)}
            dcp.load(saved, checkpoint_id=folder / name)
            set_optimizer_state_dict(model, optimizer, saved["optimizer"])
            restore(model, saved["model"])
            steps(name, model, optimizer, mode, range(STEPS, STEPS + MORE), rank, ranks)
            found[name] = difference(whole(model), end)
        except Exception:
            found[name] = traceback.format_exc()
            if ranks > 1:
                raise
    return found


@torch.no_grad()
def restore(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    from danalab.optim.distributed.dtensor.layout import cut

    for name, p in model.named_parameters():
        value = values[name.removeprefix("module.")]
        if isinstance(p, DTensor):
            p.to_local().copy_(cut(value, p.device_mesh, p.placements))
        else:
            p.copy_(value)


def measure(mode: str, names: Sequence[str], seconds: float = 240.0) -> dict[str, dict[str, Any]]:
    """What each optimizer does in a mode: {"refused": why}, or {"step": difference, "reload": difference}."""
    refused = {name: why_not(optimizer_spec(name), mode) for name in names}
    wants = {name: alone(name) for name in names if refused[name] is None}
    found: dict[str, dict[str, Any]] = {name: {"refused": why} for name, why in refused.items() if why is not None}
    if wants:
        before, after = RANKS[mode]
        with tempfile.TemporaryDirectory() as folder:
            stepped = run_ranks(first_part, before, mode, wants, Path(folder), seconds=seconds)
            reloaded = run_ranks(second_part, after, mode, wants, Path(folder), seconds=seconds)
        for name in wants:
            found[name] = {
                "step": max((part[name] for part in stepped), key=_severity),
                "reload": max((part[name] for part in reloaded), key=_severity),
            }
    return {name: found[name] for name in names}


def _severity(value: Any) -> float:
    return value if isinstance(value, float) else float("inf")
