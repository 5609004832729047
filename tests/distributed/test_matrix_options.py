"""Options around matrices and heads as matrices: ZeRO, FSDP2, tensor parallelism and both equal one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from danalab.cli._shared.flags import parse
from danalab.cli.app import main
from danalab.files import read_yaml, to_yaml
from danalab.models import ModelConfig, build_model
from danalab.models.parallel import apply_tensor_parallel
from danalab.optim import DistributedMuonAdamW, build_optimizer
from danalab.optim.distributed.dtensor.layout import cut, spread_like
from danalab.train import job as job_module
from danalab.train.config.train_config import TrainConfig
from danalab.train.job import run_training
from danalab.train.run.metrics import read_rows
from distributed.ranks import run_ranks

OPTIONS: dict[str, dict[str, Any]] = {
    "per-head": {"per_head": True},
    "normuon": {"normalise": "normuon"},
    "floor": {"uw_floor": 30.0},
    "all": {"per_head": True, "normalise": "normuon", "uw_floor": 30.0, "cautious_decay": True},
    "held": {"per_head": True, "normalise": "normuon", "hold_norm": True},
    "muon-h": {"name": "muon-h", "per_head": True, "normalise": "normuon"},
    "scion": {"name": "scion", "per_head": True, "normalise": "normuon", "cautious_decay": True, "radius": 1.0},
    "dion2": {"name": "dion2", "cautious_decay": True},
}
"""The floor is above the norm of every update."""
CONFIG = ModelConfig("gpt", 12, 2, 4, 3, 20, vocab_size=22, seq_len=8, n_kv_heads=2)
EXPERTS = ModelConfig("moe", 12, 1, 2, 6, 20, vocab_size=22, seq_len=8, n_experts=4)
STEPS = 4
QUICK = ("all", "held", "scion")
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


def made(model: nn.Module, settings: dict[str, Any], build: Any = build_optimizer) -> Any:
    rest = {"name": "dana-muon", **settings}
    name = rest.pop("name")
    given = {"optimizer": name} if build is DistributedMuonAdamW else {}
    args = (model,) if given else (name, model)
    return build(*args, lr=0.02, weight_decay=0.1, **given, **rest)


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
        saved = get_optimizer_state_dict(resumed, first)
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


WORDS = """--opt dana-muon --arch moe --n-experts 4 --d-model 24 --n-layers 1 --n-heads 2 --seq-len 16 --global-batch 8
--iterations 6 --lr 0.02 --ckpt-interval 0 --eval-interval 6 --eval-batches 1 --log-interval 1 --per-head
--normalise normuon --row-beta 0.9 --group router:lr=1e-3,beta2=0.9,weight_decay=0.01 --group head:lr_factor=0.5"""
IN_YAML = {
    "per_head": True,
    "normalise": "normuon",
    "row_beta": 0.9,
    "by_kind": {"router": {"lr": 1e-3, "beta2": 0.9, "weight_decay": 0.01}, "head": {"lr_factor": 0.5}},
}


def config_of(*words: str) -> TrainConfig:
    return parse(TrainConfig, list(words), prog="danalab train", description="").flags


def test_kinds_and_heads_are_the_same_words_as_flags_in_yaml_and_as_printed(tmp_path, capsys, words):
    flags = ["--data", str(words), *WORDS.split()]
    given = config_of(*flags)
    assert main(["train", *flags, "--print-config"]) == 0
    printed, by_hand = tmp_path / "printed.yaml", tmp_path / "by_hand.yaml"
    printed.write_text(capsys.readouterr().out)
    kept = {key: value for key, value in read_yaml(printed).items() if key != "optimizer_settings"}
    by_hand.write_text(to_yaml({**kept, **IN_YAML}))
    for file in (printed, by_hand):
        found = config_of("--config", str(file)).optimizer_settings
        assert {key: found[key] for key in IN_YAML} == {key: given.optimizer_settings[key] for key in IN_YAML}
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(to_yaml({**kept, "by_kind": {"rooter": {"lr": 1e-3}}}))
    assert main(["train", "--config", str(wrong)]) == 2
    assert "did you mean 'router'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "own"), [("muon", "beta1=0.8,beta2=0.9"), ("d-muon", "betas=0.8/0.9"), ("dana-muon", "beta2=0.9")]
)
def test_routers_have_a_rate_betas_and_decay_of_their_own(name, own):
    model = build_model(EXPERTS, seed=0)
    optimizer = build_optimizer(name, model, lr=0.02, by_kind=f"router:lr=1e-3,weight_decay=0.01,{own}")
    [router] = [group for group in optimizer.param_groups if group["kind"] == "router"]
    assert (router["lr"], router["weight_decay"]) == (1e-3, 0.01)
    assert router["betas"] == (0.8, 0.9) if "betas" in router else router["beta2"] == 0.9
    assert [name for name in router["param_names"] if "router" not in name] == []
    assert router["param_names"]


def losses(folder: Path) -> list[float]:
    return [row["train/loss"] for row in read_rows(folder / "metrics.jsonl") if "train/loss" in row]


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [["zero"], ["fsdp"], ["fsdp", "--tp-size", "2"]], ids=["zero", "fsdp", "tp"])
def test_a_run_with_kinds_and_heads_is_the_same_on_two_ranks(words, tmp_path, parallel):
    flags = ["--data", str(words), *WORDS.split()]
    groups: list[dict[str, Any]] = []

    def run(rank: int, ranks: int, *more: str) -> None:
        run_training(config_of(*flags, *more))

    with pytest.MonkeyPatch.context() as patch:
        build = job_module.build_trainer

        def watched(*args: Any, **kwargs: Any) -> Any:
            trainer = build(*args, **kwargs)
            groups.extend(trainer.driver.optimizer.param_groups)
            return trainer

        patch.setattr(job_module, "build_trainer", watched)
        run(0, 1, "--run-dir", str(tmp_path / "one"))
    of_kind = {group["kind"]: group for group in groups}
    router = [of_kind["router"][key] for key in ("peak_lr", "beta2", "weight_decay")]
    assert router == [1e-3, 0.9, 0.01]
    assert of_kind["head"]["peak_lr"] == 0.01
    assert {group.get("heads") for group in groups if group["kind"] == "matrix"} >= {2}
    more = ["--run-dir", str(tmp_path / "two"), "--distributed-backend", *parallel]
    run_ranks(run, 2, *more, seconds=240)
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)
    assert losses(tmp_path / "one")
