"""DiLoCo: the outer step by a float64 oracle, workers that die, hang and come back, and runs that go on to the bit."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from danalab.data import open_dataset
from danalab.errors import UserError
from danalab.models import build_model
from danalab.models.loss import chunked_cross_entropy
from danalab.optim import build_optimizer, settings_of
from danalab.train import diloco as exchange_module
from danalab.train import job as job_module
from danalab.train.build import build_trainer
from danalab.train.config.resolve import resolve
from danalab.train.config.train_config import TrainConfig
from danalab.train.diloco import Exchange, OuterStep
from danalab.train.job import run_training
from danalab.train.run.metrics import read_rows
from danalab.train.run.open import open_run
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
        values |= {"diloco_steps": 5, "diloco_patience": 300.0}
    return TrainConfig(**{**values, **given})  # type: ignore[arg-type]


def train(rank: int, size: int, config: TrainConfig) -> str:
    return run_training(config).status


def final(folder: Path) -> Weights:
    return {name: p.detach() for name, p in open_run(folder).load_model().model.named_parameters()}


def hooked(monkeypatch: pytest.MonkeyPatch, before_step: Callable[[Any], None]) -> None:
    """Have `before_step(trainer)` called before each step of each worker."""

    def build(*args: Any, **kwargs: Any):
        trainer = build_trainer(*args, **kwargs)
        original = trainer._make_step

        def step(*of: Any):
            before_step(trainer)
            return original(*of)

        trainer._make_step = step
        return trainer

    monkeypatch.setattr(job_module, "build_trainer", build)


def patience_ends(monkeypatch: pytest.MonkeyPatch, run: Path, end: int, living: list[int]) -> None:
    """Workers wait for ever, except in the round that ends at `end`: there until all that are alive have reported.

    The clock moves only where two looks in a row found their files, so that a decision never misses one of them.
    """
    files = [run / "diloco" / f"round-{end:08d}" / f"worker-{worker}.safetensors" for worker in living]
    state = {"now": 0.0, "seen": False}

    def clock() -> float:
        newest = max((run / "diloco").glob("round-*"), default=None)
        seen = newest == files[0].parent and all(file.is_file() for file in files)
        state["now"] += 1e6 * (seen and state["seen"])
        state["seen"] = seen
        return state["now"]

    monkeypatch.setattr(exchange_module, "time", SimpleNamespace(monotonic=clock, sleep=time.sleep))


# ---- the method ----


def oracle(
    config: TrainConfig, workers: int, present: Callable[[int], list[int]] = lambda end: [0, 1, 2]
) -> list[Weights]:
    """Outer weights after each round, by one process in float64 that takes each worker's part in turn."""
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
    found, start = [], 0
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
            assert k < workers
        counted = [list(models[k].parameters()) for k in present(end) if k < workers]
        for place, (outer, m) in enumerate(zip(theta, momentum, strict=True)):
            g = outer - sum(weights[place].detach() for weights in counted) / len(counted)
            m.mul_(0.9).add_(g)
            outer -= 0.7 * (g + 0.9 * m)
            for model in models:
                list(model.parameters())[place].data.copy_(outer)
        found.append({name: p.detach().clone() for name, p in models[0].named_parameters()})
        start = end
    return found


def distance(ours: Weights, expected: Weights) -> float:
    """How far all weights are from those in float64, in units of these; single ones follow signs of tiny gradients."""
    one, other = (torch.cat([w.double().flatten() for w in found.values()]) for found in (ours, expected))
    return float((one - other).norm() / other.norm())


@pytest.mark.sample(1)
@pytest.mark.parametrize(("workers", "opt"), [(2, "adana"), (3, "adamw")])
def test_workers_follow_the_oracle(words, tmp_path, workers, opt):
    config = settings(words, tmp_path / "run", opt=opt)
    assert run_ranks(train, workers, config) == ["finished"] * workers
    expected = oracle(config, workers)[-1]
    for folder in [tmp_path / "run", *(tmp_path / "run" / "workers" / str(k) for k in range(1, workers))]:
        assert distance(final(folder), expected) < 2e-4
    rows = {row["step"]: row for row in read_rows(tmp_path / "run" / "metrics.jsonl")}
    assert sorted(rows) == [1, 3, 6, 9, 12]
    assert rows[6]["diloco/workers"] == workers
    assert rows[6]["diloco/outer_grad_norm"] > 0
    assert 0 < rows[6]["diloco/divergence"] < 10
    size = sum(p.numel() for p in expected.values()) * 4
    assert size * (1 + workers) < rows[6]["diloco/bytes"] < size * (1 + workers + 2) + 20_000
    assert 0 < rows[12]["diloco/train_loss"] < rows[6]["diloco/train_loss"]


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
    assert all(torch.equal(final(tmp_path / "one")[name], p) for name, p in final(tmp_path / "plain").items())


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


@pytest.mark.parametrize("lr", [0.3, 1.0])
def test_the_outer_step_is_torchs_sgd_with_nesterov(lr):
    draw = torch.Generator().manual_seed(0)
    theta = {"w": torch.randn(4, 3, generator=draw)}
    momentum = {"w": torch.zeros(4, 3)}
    expected = theta["w"].double().clone().requires_grad_()
    sgd = torch.optim.SGD([expected], lr=lr, momentum=0.9, nesterov=True)
    for _ in range(4):
        workers = [torch.randn(4, 3, generator=draw) for _ in range(3)]
        expected.grad = (expected.detach().float() - torch.stack(workers).double().mean(0)).double()
        sgd.step()
        norm, _ = OuterStep(lr, 0.9)(theta, momentum, [lambda name, w=w: w for w in workers])
        assert norm == pytest.approx(float(expected.grad.norm()), rel=1e-5)
        torch.testing.assert_close(theta["w"].double(), expected.detach(), rtol=1e-5, atol=1e-6)


def test_workers_that_agree_do_not_diverge():
    theta, momentum = {"w": torch.ones(5)}, {"w": torch.zeros(5)}
    assert OuterStep(0.7, 0.9)(theta, momentum, [lambda name: torch.full((5,), 0.5)] * 3)[1] == 0.0


# ---- going on ----


def everything(folder: Path, workers: int) -> list[Weights]:
    """All tensors of the last checkpoints of all workers."""
    from torch.distributed.checkpoint import FileSystemReader, load

    found = []
    for own in [folder, *(folder / "workers" / str(k) for k in range(1, workers))]:
        path = own / "checkpoints" / "step-00000012"
        stored = FileSystemReader(path).read_metadata().state_dict_metadata
        tensors = {
            name: torch.zeros(entry.size, dtype=entry.properties.dtype)
            for name, entry in stored.items()
            if hasattr(entry, "size")
        }
        load(tensors, storage_reader=FileSystemReader(path), no_dist=True)
        found.append(tensors)
    return found


def same(ours: list[Weights], theirs: list[Weights]) -> bool:
    return all(
        one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
        for one, other in zip(ours, theirs, strict=True)
    )


def test_a_run_that_stops_amid_a_period_is_bitwise_the_run_in_one(words, tmp_path):
    run_ranks(train, 2, settings(words, tmp_path / "whole"))
    parts = settings(words, tmp_path / "parts", iterations_to_run=7)  # rounds end at 5, 10, 12
    assert [run_ranks(train, 2, parts) for _ in range(2)] == [["stopped"] * 2, ["finished"] * 2]
    assert same(everything(tmp_path / "parts", 2), everything(tmp_path / "whole", 2))
    one, two = (read_rows(tmp_path / name / "metrics.jsonl") for name in ("whole", "parts"))
    untimed = (
        "train/loss",
        "val/loss",
        "grad_norm",
        "diloco/divergence",
        "diloco/train_loss",
        "diloco/bytes_total",
    )
    assert [[row.get(key) for key in untimed] for row in one] == [
        [row.get(key) for key in untimed] for row in two
    ]


@pytest.mark.slow
def test_workers_that_were_cut_off_at_different_steps_come_to_the_same(words, tmp_path):
    config = settings(words, tmp_path / "run", keep_last=9)
    run_ranks(train, 2, config)
    whole = everything(tmp_path / "run", 2)
    lost = {"checkpoints": (12,), "workers/1/checkpoints": (8, 12)}
    for folder, steps in lost.items():
        for step in steps:
            (tmp_path / "run" / folder / f"step-{step:08d}" / "COMMIT").unlink()
    assert run_ranks(train, 2, config) == ["finished"] * 2  # the first from step 8, the second from step 4
    assert same(everything(tmp_path / "run", 2), whole)


@pytest.mark.slow
def test_a_worker_that_is_stopped_while_it_waits_ends_the_round_when_it_goes_on(words, tmp_path, monkeypatch):
    run_ranks(train, 2, settings(words, tmp_path / "whole"))
    wait_for_others = Exchange.wait_for_others

    def interrupted(self: Exchange, end: int, should_stop: Callable[[], bool]) -> list[int] | None:
        os.kill(os.getpid(), signal.SIGUSR1)
        return wait_for_others(self, end, should_stop)

    def cut_off(rank: int, size: int) -> str:
        with monkeypatch.context() as patch:
            if rank == 0:
                patch.setattr(Exchange, "wait_for_others", interrupted)
            few = settings(words, tmp_path / "parts", iterations_to_run=3 if rank else None)
            return run_training(few).status

    assert run_ranks(cut_off, 2) == ["interrupted", "stopped"]
    assert run_ranks(train, 2, settings(words, tmp_path / "parts")) == ["finished"] * 2
    assert same(everything(tmp_path / "parts", 2), everything(tmp_path / "whole", 2))


def test_a_checkpoint_amid_a_period_has_the_outer_weights_as_its_model(words, tmp_path):
    run_ranks(train, 2, settings(words, tmp_path / "run", iterations_to_run=8, ckpt_interval=0))
    outcome = Exchange(tmp_path / "run" / "diloco", 0, 2, 1.0).outcome(5)
    for name, weights in final(tmp_path / "run").items():
        assert torch.equal(weights, outcome(f"model.{name}"))


@pytest.mark.slow
def test_validation_is_of_the_outer_weights(words, tmp_path):
    run_ranks(train, 2, settings(words, tmp_path / "run", iterations_to_run=8, keep_steps=("6",)))
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


# ---- workers that are gone ----


class Gone(Exception):
    """What ends a worker amid a step."""


def present(folder: Path) -> dict[int, list[int]]:
    return Exchange(folder / "diloco", 0, 1, 1.0).decided()


@pytest.mark.slow
def test_the_others_go_on_without_a_worker_that_dies(words, tmp_path, monkeypatch):
    def die(trainer: Any) -> None:
        if trainer.world.worker == 2 and trainer.step == 7:
            raise Gone

    def survive(rank: int, size: int, config: TrainConfig) -> str:
        with contextlib.suppress(Gone):
            return run_training(config).status
        return "gone"

    hooked(monkeypatch, die)
    patience_ends(monkeypatch, tmp_path / "run", 10, living=[0, 1])
    config = settings(words, tmp_path / "run")
    assert run_ranks(survive, 3, config) == ["finished", "finished", "gone"]
    assert present(tmp_path / "run") == {5: [0, 1, 2], 10: [0, 1], 12: [0, 1]}
    expected = oracle(config, 3, lambda end: [0, 1, 2] if end == 5 else [0, 1])[-1]
    assert distance(final(tmp_path / "run"), expected) < 2e-4
    monkeypatch.undo()
    assert run_ranks(train, 3, config) == ["finished"] * 3  # the third comes when all is over
    assert all(
        torch.equal(final(tmp_path / "run" / "workers" / "2")[n], p)
        for n, p in final(tmp_path / "run").items()
    )


@pytest.mark.slow
@pytest.mark.parametrize("who", [1, 0])
def test_a_worker_that_comes_back_is_counted_again(words, tmp_path, monkeypatch, who):
    folder = tmp_path / "run" / "diloco"

    def mishap(trainer: Any) -> None:
        if trainer.world.worker == who and trainer.step == 7:  # once: it returns at step 15
            raise Gone
        if trainer.world.worker != who and trainer.step == 16:
            while json.loads((folder / "coming" / f"worker-{who}.json").read_text()) != 20:
                time.sleep(0.01)

    def work(rank: int, size: int, config: TrainConfig) -> str:
        with contextlib.suppress(Gone):
            return run_training(config).status
        while not (folder / "round-00000015/outcome.safetensors").exists():
            time.sleep(0.01)
        return run_training(config).status

    hooked(monkeypatch, mishap)
    patience_ends(monkeypatch, tmp_path / "run", 10, living=[1 - who])
    config = settings(words, tmp_path / "run", iterations=25, ckpt_interval=3)
    assert run_ranks(work, 2, config) == ["finished"] * 2
    assert present(tmp_path / "run") == {5: [0, 1], 10: [1 - who], 15: [1 - who], 20: [0, 1], 25: [0, 1]}
    other = final(tmp_path / "run" / "workers" / "1")
    assert all(torch.equal(other[name], p) for name, p in final(tmp_path / "run").items())
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["step"] == 25


@pytest.mark.slow
def test_more_workers_go_on_with_what_fewer_began(words, tmp_path):
    run_ranks(train, 2, settings(words, tmp_path / "run", iterations_to_run=7))
    assert run_ranks(train, 3, settings(words, tmp_path / "run")) == ["finished"] * 3
    assert present(tmp_path / "run")[12] == [0, 1, 2]
    ends = [final(tmp_path / "run" / where) for where in (".", "workers/1", "workers/2")]
    assert all(torch.equal(ends[0][name], end[name]) for end in ends[1:] for name in end)


@pytest.mark.slow
def test_weights_that_are_not_finite_never_reach_the_others(words, tmp_path, monkeypatch):
    def spoil(trainer: Any) -> None:
        if trainer.world.worker == 1 and trainer.step == 7:
            with torch.no_grad():
                next(trainer.model.parameters())[0] = float("nan")

    hooked(monkeypatch, spoil)
    patience_ends(monkeypatch, tmp_path / "run", 10, living=[0])
    config = settings(words, tmp_path / "run", on_nonfinite="skip")
    assert run_ranks(train, 2, config) == ["finished", "nonfinite"]
    assert all(bool(torch.isfinite(p).all()) for p in final(tmp_path / "run").values())


# ---- what is refused ----


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"distributed_backend": "ddp", "diloco_steps": 5},
            "--diloco-steps 5: only with --distributed-backend diloco",
        ),
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


def test_going_back_is_refused_and_so_is_another_period(words, tmp_path):
    run_training(settings(words, tmp_path / "run", keep_last=9))
    back = tmp_path / "run" / "checkpoints" / "step-00000004"
    with pytest.raises(UserError, match="cannot go back together; take another --run-dir"):
        run_training(settings(words, tmp_path / "run", resume_from=back))
    with pytest.raises(UserError, match="--diloco-steps: 5 there, 6 here"):
        run_training(settings(words, tmp_path / "run", diloco_steps=6))


@pytest.mark.parametrize("content", ['["../../elsewhere"]', '{"0": 1}', "[true]", "[-1]"])
def test_a_decision_that_names_anything_but_workers_is_refused(tmp_path, content):
    (tmp_path / "round-00000005").mkdir()
    (tmp_path / "round-00000005" / "present.json").write_text(content)
    with pytest.raises(UserError, match=r"present.json: malformed"):
        Exchange(tmp_path, 0, 2, 1.0).wait_for_others(5, bool)


def test_the_old_name_of_enoki_is_taken(words, tmp_path):
    config = settings(words, tmp_path / "run", arch="diloco", distributed_backend="single")
    resolved = resolve(config, open_dataset(words))
    assert resolved.arch == "enoki"
