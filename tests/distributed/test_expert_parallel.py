"""Experts that are shared out among ranks compute, learn, clip and are saved as in one process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from danalab.errors import UserError
from danalab.models import ModelConfig, build_model
from danalab.models.moe.mixture import router_losses, weighted
from danalab.models.parallel import apply_expert_parallel, check_expert_parallel
from danalab.optim import build_optimizer
from danalab.train.checkpoint import tensors
from danalab.train.config.train_config import TrainConfig
from danalab.train.parallel.layout import RankLayout
from danalab.train.run.metrics import read_rows
from danalab.train.trainer import run_training
from distributed.curves import Case, curve, curves
from distributed.ranks import run_ranks

PARALLEL = RankLayout("fsdp", expert_parallel=True)
REPLICATED = RankLayout("ddp", expert_parallel=True)
CONFIG = ModelConfig("moe", 16, 2, 2, 8, 24, 31, 12, n_experts=8, top_k=3, n_shared_experts=1)
TOKENS = torch.randint(0, 31, (4, 12), generator=torch.Generator().manual_seed(1))


def passed(model, tokens, positions: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """(hidden states, gradients): of a sum over tokens and of the router's losses with a given use of experts."""
    hidden = model.hidden(tokens)
    losses = router_losses(model.take_routing(), position_count=positions)
    (
        hidden.square().sum() / positions + weighted(CONFIG, {**losses, "load_balance": losses["router_z"]})
    ).backward()
    return hidden.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("ranks", [2, 4])
def test_outputs_and_gradients_are_those_of_one_process_and_every_expert_learns(ranks):
    def shared(rank: int, size: int):
        model = build_model(CONFIG, seed=3)
        apply_expert_parallel(model, CONFIG, init_device_mesh("cpu", (size,)))
        own = TOKENS[rank * 4 // size : (rank + 1) * 4 // size]
        hidden, grads = passed(model, own, TOKENS.numel())
        whole = {}
        for name, grad in grads.items():
            if isinstance(grad, DTensor):
                assert grad.to_local().shape[0] == 8 // size
                whole[name] = grad.full_tensor()
            else:
                torch.distributed.all_reduce(grad)
                whole[name] = grad
        return hidden, whole

    hidden, grads = passed(build_model(CONFIG, seed=3), TOKENS, TOKENS.numel())
    results = run_ranks(shared, ranks)
    torch.testing.assert_close(torch.cat([found for found, _ in results]), hidden, rtol=0, atol=1e-5)
    for name, grad in grads.items():
        torch.testing.assert_close(results[0][1][name], grad, rtol=1e-5, atol=1e-5, msg=name)
        if ".experts." in name:
            assert (results[0][1][name].flatten(1).norm(dim=1) > 0).all(), name


@pytest.mark.slow
@pytest.mark.parametrize("layout", [PARALLEL, REPLICATED], ids=["fsdp", "ddp"])
@pytest.mark.parametrize(
    ("ranks", "opts"), [(2, ("adamw", "muon")), pytest.param(4, ("adana",), marks=pytest.mark.slow)]
)
def test_ranks_with_experts_of_their_own_make_the_curve_of_one(ranks, opts, layout):
    cases = [Case("moe", opt, layout, micro_batch=2, checkpointing="full", steps=8) for opt in opts]
    results = run_ranks(curves, ranks, cases, seconds=240.0)
    expected = {opt: curve(Case("moe", opt, steps=8)) for opt in opts}
    for case, found in zip(cases, results[0], strict=True):
        error = ((found - expected[case.opt]) / expected[case.opt]).abs()
        assert error[:, 0].max() < 1e-5, f"loss: {case}"
        assert error[:, 1].max() < 5e-5, f"gradient norm: {case}"
        assert error[:, 2].max() < 2e-4, f"update norm: {case}"


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "layout", [RankLayout("ddp"), RankLayout("zero"), RankLayout("fsdp")], ids=["ddp", "zero", "fsdp"]
)
def test_a_model_with_experts_makes_the_curve_of_one_in_every_mode(layout):
    cases = [Case("moe", "adana", layout), Case("moe", "d-muon", layout, 2, "selective")]
    for case, found in zip(cases, run_ranks(curves, 2, cases, seconds=240.0)[0], strict=True):
        expected = curve(Case("moe", case.opt))
        error = ((found - expected) / expected).abs()
        assert error[:, 0].max() < 1e-5, f"loss: {case}"
        assert error[:, 1].max() < 5e-5, f"gradient norm: {case}"


@pytest.mark.slow
def test_what_ranks_with_experts_save_one_process_reads_and_back(tmp_path: Path):
    def saved(rank: int, size: int, folder: Path):
        model, optimizer = trained(init_device_mesh("cpu", (size,)), rank, size)
        tensors.write(tensors.state_of(model, optimizer), folder, world(rank, size))

    def read(rank: int, size: int, folder: Path):
        model = build_model(CONFIG, seed=5)
        apply_expert_parallel(model, CONFIG, init_device_mesh("cpu", (size,)))
        optimizer = build_optimizer("adana", model, lr=1e-2)
        tensors.read(folder, model, optimizer)
        return {
            name: p.full_tensor() if isinstance(p, DTensor) else p.detach()
            for name, p in model.named_parameters()
        }

    run_ranks(saved, 2, tmp_path)
    alone, _ = trained(None, 0, 1)
    model = build_model(CONFIG, seed=5)
    tensors.read(tmp_path, model, build_optimizer("adana", model, lr=1e-2))
    four = run_ranks(read, 4, tmp_path)[0]
    for name, p in alone.named_parameters():
        torch.testing.assert_close(model.get_parameter(name), p, rtol=1e-5, atol=1e-5, msg=name)
        assert torch.equal(four[name], model.get_parameter(name)), name


def trained(mesh, rank: int, size: int):
    """A model after one step on all tokens."""
    model = build_model(CONFIG, seed=3)
    if mesh is not None:
        apply_expert_parallel(model, CONFIG, mesh)
    optimizer = build_optimizer("adana", model, lr=1e-2)
    _, grads = passed(model, TOKENS[rank * 4 // size : (rank + 1) * 4 // size], TOKENS.numel())
    for grad in grads.values():
        if mesh is not None and not isinstance(grad, DTensor):
            torch.distributed.all_reduce(grad)
    optimizer.step()
    return model, optimizer


def world(rank: int, size: int):
    from danalab.train.parallel.world import World

    return World(rank=rank, size=size, control=torch.distributed.new_group(backend="gloo"))  # pyright: ignore


def config(words: Path, run_dir: Path, **given: object) -> TrainConfig:
    values: dict[str, object] = {
        "arch": "qwen3next", "full_attention_interval": 2, "opt": "d-muon", "data": str(words), "d_model": 16,
        "n_layers": 2, "n_heads": 2, "mlp_dim": 36, "n_experts": 4, "seq_len": 16, "global_batch": 4, "iterations": 8,
        "lr": 1e-3, "log_interval": 1, "eval_batches": 1, "run_dir": run_dir,
    }  # fmt: skip
    return TrainConfig(**{**values, **given})  # type: ignore[arg-type]


def run(rank: int, size: int, *settings: TrainConfig) -> list[int]:
    return [run_training(each).exit_code for each in settings]


@pytest.mark.slow
def test_a_run_goes_on_with_experts_shared_out_in_any_way_with_the_same_losses(words, tmp_path):
    run(0, 1, config(words, tmp_path / "whole"))
    ways = [
        {"distributed_backend": "ddp", "expert_parallel": True},
        {"distributed_backend": "fsdp", "tp_size": 2},
    ]
    ways += [{"expert_parallel": True}]
    parts = [config(words, tmp_path / "parts", iterations_to_run=2, **way) for way in ways]
    assert run_ranks(run, 2, *parts, seconds=240.0) == [[0] * 3] * 2
    assert run(0, 1, config(words, tmp_path / "parts")) == [0]
    found, expected = (read_rows(tmp_path / name / "metrics.jsonl") for name in ("parts", "whole"))
    assert [row["step"] for row in found] == [row["step"] for row in expected] == list(range(1, 9))
    for ours, theirs in zip(found, expected, strict=True):
        assert ours["train/loss"] == pytest.approx(theirs["train/loss"], rel=1e-5)
        assert ours["moe/max_load"] == pytest.approx(theirs["moe/max_load"])


@pytest.mark.parametrize(
    ("config", "ranks", "message"),
    [
        (CONFIG, 3, "8 experts cannot be divided among 3 ranks"),
    ],
)
def test_experts_that_cannot_be_shared_out_are_refused(config, ranks, message):
    with pytest.raises(UserError, match=message):
        check_expert_parallel(config, ranks)
