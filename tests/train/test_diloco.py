"""DiLoCo: runs by a float64 oracle, and runs that go on to the bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader, load
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from danalab.data import open_dataset
from danalab.errors import UserError
from danalab.models import build_model
from danalab.models.loss import chunked_cross_entropy
from danalab.optim import build_optimizer, settings_of
from danalab.train import trainer as trainer_module
from danalab.train.config.resolve import resolve
from danalab.train.config.train_config import TrainConfig
from danalab.train.run.metrics import read_rows
from danalab.train.run.open import open_run
from danalab.train.trainer import Trainer, run_training
from distributed.ranks import run_ranks

Weights = dict[str, Tensor]


def settings(data: Path, run_dir: Path, **given: object) -> TrainConfig:
    """12 steps of 6 sequences in periods of 5, whatever the number of workers: rounds end at 5, 10 and 12."""
    values: dict[str, object] = {
        "data": str(data), "d_model": 16, "n_layers": 1, "n_heads": 2, "seq_len": 16, "global_batch": 6,
        "iterations": 12, "lr": 3e-3, "weight_decay": 0.1, "eval_interval": 6, "eval_batches": 1, "log_interval": 3,
        "ckpt_interval": 4, "run_dir": run_dir, "distributed_backend": "diloco",
    }  # fmt: skip
    if given.get("distributed_backend", "diloco") == "diloco":
        values |= {"diloco_steps": 5}
    return TrainConfig(**{**values, **given})  # type: ignore[arg-type]


def train(rank: int, size: int, config: TrainConfig) -> str:
    return run_training(config).status


def final(folder: Path) -> Weights:
    return {name: p.detach() for name, p in open_run(folder).load_model().model.named_parameters()}


def hooked(monkeypatch: pytest.MonkeyPatch, before_step: Callable[[Any], None]) -> None:
    """Have `before_step(trainer)` called before each step of each worker."""

    def build(*args: Any, **kwargs: Any):
        trainer = Trainer(*args, **kwargs)
        original = trainer._make_step

        def step(*of: Any):
            before_step(trainer)
            return original(*of)

        trainer._make_step = step
        return trainer

    monkeypatch.setattr(trainer_module, "Trainer", build)


# ---- the method ----


def oracle(config: TrainConfig, workers: int) -> Weights:
    """The outer weights at the end, by one process in float64 that takes each worker's part in turn."""
    dataset = open_dataset(config.data)
    resolved = resolve(config, dataset, workers)
    shape, schedule = resolved.model, resolved.schedule()
    period, iterations = resolved.diloco_steps, resolved.last_step
    models = [
        build_model(shape, init=config.init, seed=config.seed, dtype=torch.float64) for _ in range(workers)
    ]
    chosen = resolved.settings_of_optimizer(settings_of(config.opt))
    optimizers: list[Any] = [build_optimizer(config.opt, m, lr=resolved.lr, **chosen) for m in models]
    batches = [
        dataset.batches(seed=config.data_seed, global_batch=6, seq_len=16, rank=k, world_size=workers)
        for k in range(workers)
    ]
    theta = [p.detach().clone() for p in models[0].parameters()]
    momentum = [torch.zeros_like(p) for p in theta]
    start = 0
    while start < iterations:
        end = min(iterations, (start // period + 1) * period)
        for k, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            for step in range(start, end):
                inputs, targets = batches[k][step]
                ce, lse2 = chunked_cross_entropy(
                    model.hidden(inputs), model.head_weight, targets, config.z_loss
                )
                (ce + config.z_loss * lse2).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip)
                for group in optimizer.param_groups:
                    group["lr"] = resolved.lr * schedule(step)
                optimizer.step()
                optimizer.zero_grad()
        counted = [list(model.parameters()) for model in models]
        for place, (outer, m) in enumerate(zip(theta, momentum, strict=True)):
            g = outer - sum(weights[place].detach() for weights in counted) / len(counted)
            m.mul_(0.9).add_(g)
            outer -= 0.7 * (g + 0.9 * m)
            for model in models:
                list(model.parameters())[place].data.copy_(outer)
        start = end
    return {name: p.detach() for name, p in models[0].named_parameters()}


def distance(ours: Weights, expected: Weights) -> float:
    """How far all weights are from those in float64, in units of these; single ones follow signs of tiny gradients."""
    one, other = (torch.cat([w.double().flatten() for w in found.values()]) for found in (ours, expected))
    return float((one - other).norm() / other.norm())


@pytest.mark.sample(1)
@pytest.mark.parametrize(("workers", "opt"), [(2, "adana"), (3, "adamw")])
def test_workers_follow_the_oracle(words, tmp_path, workers, opt):
    config = settings(words, tmp_path / "run", opt=opt)
    assert run_ranks(train, workers, config) == ["finished"] * workers
    assert distance(final(tmp_path / "run"), oracle(config, workers)) < 2e-4
    rows = {row["step"]: row for row in read_rows(tmp_path / "run" / "metrics.jsonl")}
    assert sorted(rows) == [1, 3, 6, 9, 12]
    assert rows[6]["diloco/outer_grad_norm"] > 0
    assert 0 < rows[6]["diloco/divergence"] < 10
    assert 0 < rows[12]["train/loss"] < rows[6]["train/loss"]


@pytest.mark.slow
def test_one_inner_step_of_sgd_with_an_outer_rate_of_one_is_data_parallel_sgd(words, tmp_path):
    plain = {"opt": "sgd", "optimizer_settings": {"momentum": 0.0, "nesterov": False}, "weight_decay": 0.0, "lr": 0.1,
             "grad_clip": 0.0, "iterations": 6}  # fmt: skip
    outer = {"diloco_steps": 1, "diloco_lr": 1.0, "diloco_momentum": 0.0}
    run_ranks(train, 2, settings(words, tmp_path / "diloco", **plain, **outer))
    run_ranks(train, 2, settings(words, tmp_path / "ddp", **plain, distributed_backend="ddp"))
    ours, theirs = final(tmp_path / "diloco"), final(tmp_path / "ddp")
    for name, weights in ours.items():
        torch.testing.assert_close(weights, theirs[name], rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_one_worker_with_an_outer_rate_of_one_trains_as_if_alone(words, tmp_path):
    run_training(settings(words, tmp_path / "one", diloco_lr=1.0, diloco_momentum=0.0))
    run_training(settings(words, tmp_path / "plain", distributed_backend="single"))
    ours, theirs = final(tmp_path / "one"), final(tmp_path / "plain")
    for name, weights in ours.items():
        torch.testing.assert_close(weights, theirs[name], rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_each_worker_reads_a_part_of_each_batch_that_no_other_reads(words, tmp_path, monkeypatch):
    seen: dict[int, list[int]] = {}
    hooked(
        monkeypatch,
        lambda trainer: seen.update({trainer.step: trainer.batches.describe(trainer.step)["windows"]}),
    )

    def read(rank: int, size: int, config: TrainConfig) -> dict[int, list[int]]:
        run_training(config)
        return seen

    parts = run_ranks(read, 3, settings(words, tmp_path / "run"))
    whole = open_dataset(words).batches(seed=1337, global_batch=6, seq_len=16)
    for step in range(12):
        assert [window for part in parts for window in part[step]] == whole.windows(step).tolist()


# ---- going on ----


def everything(folder: Path) -> Weights:
    """All tensors of the last checkpoint."""
    path = folder / "checkpoints" / "step-00000012"
    stored = FileSystemReader(path).read_metadata().state_dict_metadata
    tensors: Any = {
        name: torch.zeros(entry.size, dtype=entry.properties.dtype)
        for name, entry in stored.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    load(tensors, storage_reader=FileSystemReader(path), no_dist=True)
    return tensors


def test_a_run_that_stops_amid_a_period_is_bitwise_the_run_in_one(words, tmp_path):
    run_ranks(train, 2, settings(words, tmp_path / "whole"))
    parts = settings(words, tmp_path / "parts", iterations_to_run=7)  # rounds end at 5, 10, 12
    assert [run_ranks(train, 2, parts) for _ in range(2)] == [["stopped"] * 2, ["finished"] * 2]
    ours, theirs = everything(tmp_path / "parts"), everything(tmp_path / "whole")
    assert ours.keys() == theirs.keys()
    assert [name for name, value in ours.items() if not torch.equal(value, theirs[name])] == []
    assert {name.partition(".")[0] for name in ours} == {"model", "optim", "outer", "worker-0", "worker-1"}
    one, two = (read_rows(tmp_path / name / "metrics.jsonl") for name in ("whole", "parts"))
    untimed = ("train/loss", "val/loss", "grad_norm", "diloco/divergence")
    assert [[row.get(key) for key in untimed] for row in one] == [
        [row.get(key) for key in untimed] for row in two
    ]


def test_a_checkpoint_amid_a_period_has_the_outer_weights_as_its_model(words, tmp_path):
    run_ranks(train, 2, settings(words, tmp_path / "run", iterations_to_run=8, ckpt_interval=5))
    models = [open_run(tmp_path / "run").load_model(step).model.state_dict() for step in (5, 8)]
    assert all(torch.equal(value, models[1][name]) for name, value in models[0].items())


@pytest.mark.slow
def test_validation_is_of_the_outer_weights(words, tmp_path):
    run_ranks(train, 2, settings(words, tmp_path / "run", iterations_to_run=8, ckpt_interval=6))
    from danalab.train.evaluation import evaluate_run

    row = next(row for row in read_rows(tmp_path / "run" / "metrics.jsonl") if row["step"] == 6)
    loss = evaluate_run(tmp_path / "run", step=6).loss
    config = settings(words, tmp_path / "all", iterations_to_run=6, eval_batches=0)
    run_ranks(train, 2, config)
    rows = read_rows(tmp_path / "all" / "metrics.jsonl")
    assert rows[-1]["val/loss"] == pytest.approx(loss, rel=1e-6)
    assert rows[-1]["train/loss"] == row["train/loss"]


@pytest.mark.slow
def test_another_run_begins_with_the_outer_weights_and_another_backend_takes_them(words, tmp_path):
    run_ranks(train, 2, settings(words, tmp_path / "run", iterations_to_run=8))
    outer = final(tmp_path / "run")
    still = {"resume_from": tmp_path / "run", "iterations_to_run": 1, "lr": 1e-30, "weight_decay": 0.0}
    for name, ranks, given in (("diloco", 3, {}), ("ddp", 2, {"distributed_backend": "ddp"})):
        run_ranks(train, ranks, settings(words, tmp_path / name, **still, **given))
        assert all(torch.equal(final(tmp_path / name)[key], p) for key, p in outer.items())


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_another_number_of_workers_goes_on_with_what_two_began(words, tmp_path, workers):
    run_ranks(train, 2, settings(words, tmp_path / "run", iterations_to_run=7))
    assert run_ranks(train, workers, settings(words, tmp_path / "run")) == ["finished"] * workers
    assert distance(final(tmp_path / "run"), oracle(settings(words, tmp_path / "run"), 2)) < 0.1


@pytest.mark.parametrize("mode", ["stop", "skip"])
def test_weights_that_are_not_finite_never_reach_the_others(words, tmp_path, monkeypatch, mode):
    def spoil(trainer: Any) -> None:
        if trainer.world.rank == 1 and trainer.step == 7:
            with torch.no_grad():
                next(trainer.model.parameters())[0] = float("nan")

    hooked(monkeypatch, spoil)
    config = settings(words, tmp_path / "run", on_nonfinite=mode)
    assert run_ranks(train, 2, config) == ["nonfinite"] * 2
    assert all(bool(torch.isfinite(p).all()) for p in final(tmp_path / "run").values())


# ---- what is refused ----


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tp_size": 2}, "--tp-size 2: only with --distributed-backend fsdp"),
        ({"diloco_momentum": 1.0}, r"--diloco-momentum 1.0: must be less than 1"),
        ({"diloco_lr": 0.0}, "--diloco-lr 0.0: must be greater than 0"),
        ({"diloco_steps": 0}, "--diloco-steps 0: must be at least 1"),
        ({"opt": "snoo"}, "--opt snoo: keeps weights of its own"),
        ({"opt": "sf-adamw"}, "--opt sf-adamw: keeps weights of its own"),
    ],
)
def test_what_does_not_go_together_is_refused(words, tmp_path, given, message):
    with pytest.raises(UserError, match=message):
        run_training(settings(words, tmp_path / "run", **given))


def test_workers_go_back_together_in_another_folder_and_another_period_is_refused(words, tmp_path):
    run_training(settings(words, tmp_path / "run", keep_last=9))
    end = final(tmp_path / "run")
    back = tmp_path / "run" / "checkpoints" / "step-00000004"
    run_training(settings(words, tmp_path / "again", resume_from=back))
    assert all(torch.equal(p, end[name]) for name, p in final(tmp_path / "again").items())
    with pytest.raises(UserError, match="--diloco-steps: 5 there, 6 here"):
        run_training(settings(words, tmp_path / "run", diloco_steps=6))


def test_the_old_name_of_enoki_is_taken(words, tmp_path):
    config = settings(words, tmp_path / "run", arch="diloco", distributed_backend="single")
    resolved = resolve(config, open_dataset(words))
    assert resolved.arch == "enoki"
