"""Runs of several ranks: killed, stopped, and gone on with by other numbers of ranks in other arrangements."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from danalab.train import trainer as trainer_module
from danalab.train.config.train_config import TrainConfig
from danalab.train.run.folder import RunFolder
from danalab.train.run.metrics import read_rows
from danalab.train.trainer import run_training
from distributed.ranks import RankFailed, run_ranks
from e2e.disturbed import config, everything, rows

STEPS = 24


def short(data: Path, run_dir: Path, **given: object) -> TrainConfig:
    """24 steps of 8 sequences, however many ranks there are; a checkpoint every 6."""
    settings: dict[str, object] = {
        "iterations": STEPS,
        "warmup_steps": 2,
        "eval_interval": 12,
        "ckpt_interval": 6,
        "batch_size": None,
        "acc_steps": None,
        "global_batch": 8,
    }
    return replace(config(data, run_dir), **{**settings, **given})  # type: ignore[arg-type]


def train(rank: int, size: int, *settings: TrainConfig) -> list[int]:
    return [run_training(each).exit_code for each in settings]


def assert_same_tensors(found: Path, expected: Path) -> None:
    ours, theirs = everything(RunFolder(found), STEPS), everything(RunFolder(expected), STEPS)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not ours[name].equal(theirs[name])] == []


@pytest.mark.slow
def test_a_run_goes_on_from_one_arrangement_to_the_next_with_the_same_losses(data, tmp_path):
    run_training(short(data, tmp_path / "whole"))
    arrangements: list[tuple[int, dict[str, object]]] = [
        (1, {}),
        (2, {"distributed_backend": "ddp"}),
        (4, {"distributed_backend": "fsdp"}),
        (2, {"distributed_backend": "zero"}),
        (4, {"distributed_backend": "fsdp", "tp_size": 2}),
        (1, {}),
    ]
    for size, given in arrangements:
        settings = short(data, tmp_path / "parts", iterations_to_run=STEPS // len(arrangements), **given)
        codes = [train(0, 1, settings)] if size == 1 else run_ranks(train, size, settings)
        assert codes == [[0]] * size
    found, expected = (read_rows(tmp_path / name / "metrics.jsonl") for name in ("parts", "whole"))
    assert [row["step"] for row in found] == [row["step"] for row in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours["train/loss"] == pytest.approx(theirs["train/loss"], rel=1e-4)
        assert ours["optim/t"] == theirs["optim/t"]
    assert found[-1]["val/loss"] == pytest.approx(expected[-1]["val/loss"], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "given"),
    [
        (2, {"distributed_backend": "ddp"}),
        pytest.param(2, {"distributed_backend": "zero"}, marks=pytest.mark.slow),
        (2, {"distributed_backend": "fsdp"}),
        pytest.param(4, {"distributed_backend": "fsdp", "replicas": 2}, marks=pytest.mark.slow),
        pytest.param(4, {"distributed_backend": "fsdp", "tp_size": 2}, marks=pytest.mark.slow),
    ],
)
def test_as_many_ranks_go_on_bitwise(data, tmp_path, size, given):
    whole = short(data, tmp_path / "whole", **given)
    part = short(data, tmp_path / "parts", iterations_to_run=STEPS // 2, **given)
    assert run_ranks(train, size, whole, part, part, seconds=240.0) == [[0, 0, 0]] * size
    assert_same_tensors(part.run_dir, whole.run_dir)
    assert rows(RunFolder(part.run_dir)) == rows(RunFolder(whole.run_dir))


def hit(number: signal.Signals, step: int) -> None:
    """Send a signal to this process when it makes a step."""
    build = trainer_module.Trainer

    def building(*args, **kwargs):
        trainer = build(*args, **kwargs)
        make = trainer._make_step

        def making(*step_args):
            if trainer.step == step:
                os.kill(os.getpid(), number)
            return make(*step_args)

        trainer._make_step = making
        return trainer

    trainer_module.Trainer = building


def train_and_die(rank: int, size: int, settings: TrainConfig) -> list[int]:
    if rank == 1:
        hit(signal.SIGKILL, 15)
    return train(rank, size, settings)


@pytest.mark.slow
def test_a_rank_that_is_killed_costs_the_steps_since_the_checkpoint_and_no_bit(data, tmp_path):
    # Not beside training: under load a save of step 12 might still be under way when the rank dies at step 15.
    settings = short(data, tmp_path / "run", distributed_backend="ddp", async_checkpoint=False)
    with pytest.raises(RankFailed):
        run_ranks(train_and_die, 2, settings)
    assert RunFolder(settings.run_dir).store.steps() == [6, 12]
    whole = short(data, tmp_path / "whole", distributed_backend="ddp")
    assert run_ranks(train, 2, settings, whole) == [[0, 0]] * 2
    assert_same_tensors(settings.run_dir, whole.run_dir)
    assert rows(RunFolder(settings.run_dir)) == rows(RunFolder(whole.run_dir))


def train_and_stop(rank: int, size: int, settings: TrainConfig) -> list[int]:
    if rank == 1:
        hit(signal.SIGTERM, 8)
    return train(rank, size, settings)


def test_a_signal_to_one_rank_stops_all_at_the_same_step_with_a_checkpoint(data, tmp_path):
    settings = short(data, tmp_path / "run", distributed_backend="fsdp")
    assert run_ranks(train_and_stop, 2, settings) == [[85], [85]]
    folder = RunFolder(settings.run_dir)
    summary = folder.read_summary()
    assert summary is not None
    assert (summary["status"], summary["step"]) == ("interrupted", 9)
    assert folder.store.steps() == [6, 9]
