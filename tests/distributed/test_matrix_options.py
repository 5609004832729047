"""Options around matrices and heads as matrices: ZeRO, FSDP2, tensor parallelism and both equal one process."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from danalab.models import ModelConfig, build_model
from danalab.models.parallel import apply_tensor_parallel
from danalab.optim import DistributedMuonAdamW, build_optimizer
from danalab.optim.distributed.dtensor.layout import cut, spread_like
from distributed.ranks import run_ranks

OPTIONS: dict[str, dict[str, Any]] = {
    "per-head": {"per_head": True},
    "normuon": {"normalise": "normuon"},
    "floor": {"uw_floor": 30.0},
    "all": {"per_head": True, "normalise": "normuon", "uw_floor": 30.0, "cautious_decay": True},
    "held": {"per_head": True, "normalise": "normuon", "hold_norm": True},
}
"""The floor is above the norm of every update."""
CONFIG = ModelConfig("gpt", 12, 2, 4, 3, 20, vocab_size=22, seq_len=8, n_kv_heads=2)
EXPERTS = ModelConfig("moe", 12, 1, 2, 6, 20, vocab_size=22, seq_len=8, n_experts=4)
STEPS = 4
QUICK = ("all", "held")
EVERY = pytest.param(tuple(OPTIONS), marks=pytest.mark.slow)


def give_gradients(model: nn.Module, step: int) -> None:
    """Gradients with few bits, so that their mean over ranks is exact; sharded as the parameters are."""
    draw = torch.Generator().manual_seed(step)
    for p in model.parameters():
        p.grad = spread(torch.randint(-50, 50, p.shape, generator=draw).float() / 256, p)


def spread(whole: Tensor, like: Any) -> Tensor:
    placements = getattr(like, "placements", None)
    return whole if placements is None else spread_like(cut(whole, like.device_mesh, placements).contiguous(), like)


def full(tensor: Any) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def trained(model: nn.Module, optimizer: Any, steps: range = range(STEPS)) -> list[Tensor]:
    for step in steps:
        give_gradients(model, step)
        optimizer.step()
        optimizer.zero_grad()
    return [full(p).detach().clone() for p in model.parameters()]


def made(model: nn.Module, settings: dict[str, Any], name: str = "dana-muon", build: Any = build_optimizer) -> Any:
    given = {"optimizer": name} if build is DistributedMuonAdamW else {}
    args = (model,) if given else (name, model)
    return build(*args, lr=0.02, weight_decay=0.1, **given, **settings)


def alone(settings: dict[str, Any], config: ModelConfig = CONFIG) -> list[Tensor]:
    model = build_model(config, seed=0)
    return trained(model, made(model, settings))


def same(found: list[Tensor], want: list[Tensor], tolerance: float) -> bool:
    return all(torch.allclose(a, b, rtol=0, atol=tolerance) for a, b in zip(found, want, strict=True))


def zero(rank: int, ranks: int, options: tuple[str, ...], config: ModelConfig) -> dict[str, Any]:
    """Of each option: the weights after all steps, and after the same steps with a new optimizer half way."""
    found = {}
    for option in options:
        settings = OPTIONS[option]
        model, resumed = build_model(config, seed=0), build_model(config, seed=0)
        straight = trained(model, made(model, settings, build=DistributedMuonAdamW))
        first = made(resumed, settings, build=DistributedMuonAdamW)
        trained(resumed, first, range(STEPS // 2))
        second = made(resumed, settings, build=DistributedMuonAdamW)
        second.load_state_dict(first.state_dict())
        found[option] = straight, trained(resumed, second, range(STEPS // 2, STEPS))
    return found


@pytest.mark.parametrize("options", [QUICK, EVERY], ids=["quick", "every"])
@pytest.mark.parametrize("config", [CONFIG, pytest.param(EXPERTS, marks=pytest.mark.slow)], ids=["gpt", "moe"])
def test_zero_computes_the_bits_of_one_process_and_resumes_with_them(options, config):
    wanted = {option: alone(OPTIONS[option], config) for option in options}
    for found in run_ranks(zero, 2, options, config):
        for option, both in found.items():
            for weights in both:
                assert same(weights, wanted[option], 0.0), option


def sharded(rank: int, ranks: int, options: tuple[str, ...], how: str, config: ModelConfig) -> dict[str, Any]:
    """As `zero`, under FSDP2 ("fsdp"), tensor parallelism ("tp") or both."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    def model_of() -> nn.Module:
        names = ("fsdp", "tp") if how == "both" else (how,)
        mesh = init_device_mesh("cpu", (2,) * len(names), mesh_dim_names=names)
        model = build_model(config, seed=0)
        if "tp" in names:
            whole = [p.detach().clone() for p in model.parameters()]
            apply_tensor_parallel(model, mesh["tp"])
            for p, q in zip(model.parameters(), whole, strict=True):
                p.data.copy_(spread(q, p))
        if "fsdp" in names:
            for block in model.blocks:
                fully_shard(block, mesh=mesh["fsdp"])
            fully_shard(model, mesh=mesh["fsdp"])
        return model

    found = {}
    for option in options:
        settings = OPTIONS[option]
        model, resumed = model_of(), model_of()
        straight = trained(model, made(model, settings))
        first = made(resumed, settings)
        trained(resumed, first, range(STEPS // 2))
        saved = copy.deepcopy(get_optimizer_state_dict(resumed, first))
        second = made(resumed, settings)
        set_optimizer_state_dict(resumed, second, saved)
        found[option] = straight, trained(resumed, second, range(STEPS // 2, STEPS))
    return found


@pytest.mark.parametrize("options", [QUICK, EVERY], ids=["quick", "every"])
@pytest.mark.parametrize(
    ("ranks", "how", "config"),
    [
        (2, "fsdp", CONFIG),
        (2, "tp", CONFIG),
        pytest.param(4, "both", CONFIG, marks=pytest.mark.slow),
        pytest.param(2, "fsdp", EXPERTS, marks=pytest.mark.slow),
    ],
    ids=["fsdp", "tp", "both", "experts"],
)
def test_sharded_matrices_are_those_of_one_process(options, ranks, how, config):
    wanted = {option: alone(OPTIONS[option], config) for option in options}
    for found in run_ranks(sharded, ranks, options, how, config, seconds=300):
        for option, (straight, resumed) in found.items():
            assert same(straight, wanted[option], 1e-5), option
            assert same(resumed, straight, 0.0), option


def test_every_option_changes_the_steps():
    results = [alone({}), *map(alone, OPTIONS.values())]
    assert not any(same(a, b, 1e-4) for i, a in enumerate(results) for b in results[:i])
