"""Whole runs on several ranks: one folder, one decision, the same numbers; and what is said when a rank is gone."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from danalab.data import open_dataset
from danalab.errors import FirstRankError, LostRankError, UserError
from danalab.models import ModelConfig, build_model
from danalab.train import trainer as trainer_module
from danalab.train.config.train_config import TrainConfig
from danalab.train.evaluation import ValidationLoss
from danalab.train.parallel import world as failures
from danalab.train.parallel.layout import RankLayout
from danalab.train.parallel.world import World, join
from danalab.train.run.metrics import read_rows
from danalab.train.trainer import Trainer, run_training
from distributed.ranks import RankFailed, run_ranks

CPU = torch.device("cpu")
MEANS = {"optim/damped", "optim/effective_time", "optim/snr", "optim/momentum_norm"}
"""Means over all weights."""


def settings(data: Path, run_dir: Path, **given: object) -> TrainConfig:
    """12 steps of 8 sequences, whatever the number of ranks."""
    values: dict[str, object] = {
        "data": str(data),
        "d_model": 32,
        "n_layers": 2,
        "n_heads": 2,
        "seq_len": 16,
        "global_batch": 8,
        "iterations": 12,
        "lr": 1e-3,
        "weight_decay": 0.1,
        "eval_interval": 6,
        "eval_batches": 1,
        "log_interval": 3,
        "ckpt_interval": 0,
        "run_dir": run_dir,
    }
    return TrainConfig(**{**values, **given})  # type: ignore[arg-type]


def train(rank: int, size: int, config: TrainConfig) -> tuple[str, int]:
    outcome = run_training(config)
    return outcome.status, outcome.exit_code


def hooked(monkeypatch, hook):
    """Have `hook(trainer)` called with the trainer of each rank that is built."""

    def build(*args, **kwargs):
        trainer = Trainer(*args, **kwargs)
        hook(trainer)
        return trainer

    monkeypatch.setattr(trainer_module, "Trainer", build)


# ---- the same run ----


@pytest.mark.sample(1)
@pytest.mark.parametrize("backend", ["ddp", "zero", "fsdp"])
def test_a_run_on_two_ranks_writes_what_a_run_on_one_writes(words, tmp_path, backend):
    run_training(settings(words, tmp_path / "one"))
    assert (
        run_ranks(train, 2, settings(words, tmp_path / "two", distributed_backend=backend))
        == [("finished", 0)] * 2
    )
    one, two = (read_rows(tmp_path / name / "metrics.jsonl") for name in ("one", "two"))
    assert [row["step"] for row in two] == [row["step"] for row in one] == [1, 3, 6, 9, 12]
    for ours, theirs in zip(two, one, strict=True):
        assert theirs.keys() == ours.keys()
        for key in {"train/loss", "grad_norm", "update_norm", "val/loss", "val/bpb", "lr"} & ours.keys():
            assert ours[key] == pytest.approx(theirs[key], rel=1e-5), key
        for key in MEANS & ours.keys():
            assert ours[key] == pytest.approx(theirs[key], rel=1e-4), key
        assert [ours[key] for key in ("tokens", "flops", "optim/t")] == [
            theirs[key] for key in ("tokens", "flops", "optim/t")
        ]
    record = json.loads((tmp_path / "two" / "config.json").read_text())
    assert record["world_size"] == 2
    assert record["parallel"]["backend"] == backend


@pytest.mark.slow
@pytest.mark.parametrize(
    "parallel",
    [
        {"distributed_backend": "ddp"},
        pytest.param({"distributed_backend": "fsdp", "tp_size": 2}, marks=pytest.mark.slow),
    ],
    ids=["ddp", "tp"],
)
def test_oscillators_on_two_ranks_learn_what_they_learn_on_one(words, tmp_path, parallel):
    chosen = {"arch": "resonance", "n_heads": 4, "num_frequencies": 8, "opt": "adamw", "iterations": 6}
    run_training(settings(words, tmp_path / "one", **chosen))
    run_ranks(train, 2, settings(words, tmp_path / "two", **chosen, **parallel))
    one, two = (read_rows(tmp_path / name / "metrics.jsonl")[-1] for name in ("one", "two"))
    for key in ("train/loss", "val/loss", "grad_norm"):
        assert two[key] == pytest.approx(one[key], rel=1e-5), key


@pytest.mark.slow
@pytest.mark.parametrize(
    "parallel",
    [
        {"distributed_backend": "zero"},
        pytest.param({"distributed_backend": "fsdp"}, marks=pytest.mark.slow),
        pytest.param({"distributed_backend": "fsdp", "tp_size": 2}, marks=pytest.mark.slow),
    ],
    ids=["zero", "fsdp", "tp"],
)
def test_the_hoyer_penalty_is_the_same_on_two_ranks(words, tmp_path, parallel):
    chosen = {"hoyer_loss": 0.5, "iterations": 6}
    run_training(settings(words, tmp_path / "one", **chosen))
    run_ranks(train, 2, settings(words, tmp_path / "two", **chosen, **parallel))
    one, two = (read_rows(tmp_path / name / "metrics.jsonl") for name in ("one", "two"))
    assert one[-1]["train/hoyer"] < one[0]["train/hoyer"]
    for key in ("train/loss", "train/hoyer", "val/loss", "grad_norm"):
        assert two[-1][key] == pytest.approx(one[-1][key], rel=1e-5), key


@pytest.mark.slow
def test_validation_is_the_same_for_any_batch_and_number_of_ranks(words):
    windows = open_dataset(words, "val").sequential(16)
    lengths = torch.ones(256, dtype=torch.int64).numpy()
    shape = ModelConfig("enoki", 32, 2, 2, 16, 64, 256, 16)

    def evaluate(rank: int, size: int) -> list[tuple[float, float, int]]:
        world = join(RankLayout("ddp"), "cpu") if size > 1 else World()
        model = build_model(shape)
        found = []
        for batch_size in (2, 4, 8, 31):
            evaluator = ValidationLoss(
                windows,
                lengths,
                batch_size=batch_size,
                n_fixed=37,
                autocast=contextlib.nullcontext,
                device=CPU,
                world=world,
            )
            for result in (evaluator.spread(model, 37), evaluator.full(model)):
                assert result is not None
                assert result.bpb is not None
                found.append((result.loss, result.bpb, result.tokens))
        return found

    expected = evaluate(0, 1)
    for size in (2, 4):
        for found in run_ranks(evaluate, size):
            for (loss, bpb, tokens), (first_loss, first_bpb, first_tokens) in zip(
                found, expected[:2] * 4, strict=True
            ):
                assert loss == pytest.approx(first_loss, rel=1e-6)
                assert bpb == pytest.approx(first_bpb, rel=1e-6)
                assert tokens == first_tokens


# ---- one decision ----


def test_a_signal_to_one_rank_stops_all_at_the_same_step(words, tmp_path, monkeypatch):
    def warn_rank_1(trainer):
        original = trainer._make_step

        def step(*args):
            if trainer.world.rank == 1 and trainer.step == 4:
                os.kill(os.getpid(), signal.SIGUSR1)
            return original(*args)

        trainer._make_step = step

    hooked(monkeypatch, warn_rank_1)
    assert run_ranks(train, 2, settings(words, tmp_path / "run")) == [("interrupted", 85)] * 2
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["step"] == 5
    assert [path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*")] == ["step-00000005"]


@pytest.mark.sample(2)
@pytest.mark.parametrize("backend", ["ddp", "zero", "fsdp"])
@pytest.mark.parametrize(("mode", "outcome"), [("skip", ("finished", 0)), ("stop", ("nonfinite", 3))])
def test_a_loss_that_is_not_finite_on_one_rank_is_everyones(
    words, tmp_path, monkeypatch, backend, mode, outcome
):
    def spoil(trainer):
        original = trainer.gradients.model.forward

        def forward(*args, **kwargs):
            ce, lse2 = original(*args, **kwargs)
            spoilt = trainer.world.rank == 1 and trainer.step == 6 and torch.is_grad_enabled()
            return (ce * float("nan") if spoilt else ce), lse2

        trainer.gradients.model.forward = forward

    hooked(monkeypatch, spoil)
    config = settings(words, tmp_path / "run", distributed_backend=backend, on_nonfinite=mode)
    assert run_ranks(train, 2, config) == [outcome] * 2
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    if mode == "skip":
        assert summary["skipped"] == 1
        assert read_rows(tmp_path / "run" / "metrics.jsonl")[-1]["optim/t"] == 11
    else:
        assert summary["step"] == 6
        assert json.loads((tmp_path / "run" / "nonfinite.json").read_text())["loss"] == "nan"


def test_what_rank_0_refuses_is_refused_once(words, tmp_path):
    def refused(rank: int, size: int, config: TrainConfig) -> tuple[str, str]:
        with pytest.raises(UserError) as caught:
            run_training(config)
        return type(caught.value).__name__, str(caught.value)

    cases = {
        "--global-batch 7 is not divisible by the 2 ranks": {"global_batch": 7},
        "--tp-size 2 does not divide the model's n_heads 3": {
            "tp_size": 2, "distributed_backend": "fsdp", "d_model": 24, "n_heads": 3, "head_dim": 8
        },
        "optimizer 'prodigy' needs whole tensors": {"opt": "prodigy", "distributed_backend": "zero"},
    }  # fmt: skip
    for message, given in cases.items():
        first, second = run_ranks(refused, 2, settings(words, tmp_path / "run", **given))
        assert first[0] == "UserError"
        assert first[1].startswith(message)
        assert second == (FirstRankError.__name__, first[1])
    assert not (tmp_path / "run").exists()


# ---- a rank that is gone ----


@pytest.mark.sample(1)
@pytest.mark.parametrize("end", ["killed", "failed"])
def test_the_others_name_a_rank_that_is_gone(words, tmp_path, monkeypatch, end):
    monkeypatch.setattr(failures, "ROLL_CALL_SECONDS", 0.5)

    def lose_rank_1(trainer):
        original = trainer._make_step

        def step(*args):
            if trainer.world.rank == 1 and trainer.step == 4:
                if end == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise OSError("its disk is gone")
            return original(*args)

        trainer._make_step = step

    def survive(rank: int, size: int, config: TrainConfig) -> None:
        try:
            run_training(config)
        except LostRankError as error:
            (tmp_path / f"{rank}.txt").write_text(f"{error.quiet} {error}")
            raise

    hooked(monkeypatch, lose_rank_1)
    with pytest.raises(RankFailed):
        run_ranks(survive, 2, settings(words, tmp_path / "run"))
    reason = (
        "rank 1 died or stopped answering" if end == "killed" else "rank 1 failed: OSError: its disk is gone"
    )
    told = (tmp_path / "0.txt").read_text()
    assert told == f"False {reason}; start the job again to resume from the last checkpoint"
    assert not (tmp_path / "1.txt").exists()


def test_a_rank_that_hangs_is_named_after_the_timeout(words, tmp_path, monkeypatch):
    monkeypatch.setattr(failures, "ROLL_CALL_SECONDS", 0.5)

    def hang_rank_1(trainer):
        original = trainer._make_step

        def step(*args):
            if trainer.world.rank == 1 and trainer.step == 4:
                signal.alarm(3)  # then it dies, long after it was missed
                signal.pause()
            return original(*args)

        trainer._make_step = step

    def survive(rank: int, size: int, config: TrainConfig) -> None:
        try:
            run_training(config)
        except LostRankError as error:
            (tmp_path / f"{rank}.txt").write_text(str(error))
            raise

    hooked(monkeypatch, hang_rank_1)
    with pytest.raises(RankFailed):
        run_ranks(survive, 2, settings(words, tmp_path / "run", collective_timeout=1.0))
    assert (tmp_path / "0.txt").read_text().startswith("rank 1 died or stopped answering")


# ---- what is watched ----


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("opt", "parallel"),
    [
        ("dana-star-mk4", {"distributed_backend": "zero"}),
        pytest.param("dana-star-mk4", {"distributed_backend": "fsdp"}, marks=pytest.mark.slow),
        pytest.param("dana-star-mk4", {"distributed_backend": "fsdp", "tp_size": 2}, marks=pytest.mark.slow),
        ("manau", {"distributed_backend": "zero"}),
    ],
    ids=["zero", "fsdp", "tp", "hybrid-zero"],
)
def test_statistics_of_tau_are_those_of_one_process(words, tmp_path, opt, parallel):
    watched = {"opt": opt, "iterations": 4, "collect_tau_stats": True}
    run_training(settings(words, tmp_path / "one", **watched))
    run_ranks(train, 2, settings(words, tmp_path / "two", **watched, **parallel))
    one, two = (np.load(tmp_path / name / "tau" / "tau-step-00000004.npz") for name in ("one", "two"))
    assert one.files == two.files
    assert len(one.files) > 2
    for name in one.files:
        np.testing.assert_allclose(two[name], one[name], rtol=1e-3, atol=1e-7, err_msg=name)
