"""What a run writes beside its metrics when it is asked to, through the whole trainer."""

import json

import numpy as np
import pytest

from danalab.errors import UserError
from danalab.train import train


def rows(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_run_writes_all_that_was_asked_for(tiny):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = train(
        tiny(opt="dana-star", tensorboard=True, log_dynamics=True, collect_tau_stats=True, peak_tflops=0.1)
    )
    metrics = rows(run / "metrics.jsonl")
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    mirrored = {event.step: event.value for event in events.Scalars("train/loss")}
    assert mirrored == pytest.approx({row["step"]: row["train/loss"] for row in metrics})
    assert 0 < metrics[-1]["mfu"] < 1
    dynamics = rows(run / "dynamics.jsonl")
    assert [row["step"] for row in dynamics] == [row["step"] for row in metrics]
    whole = sum(value**2 for key, value in dynamics[0].items() if key.endswith("/update_norm")) ** 0.5
    assert whole == pytest.approx(metrics[0]["update_norm"], rel=0.05), "but for the gains, which have an rms"
    tau = np.load(run / "tau" / "tau-step-00000020.npz")
    assert tau["step"] == 20
    quantiles = [tau[name] for name in tau.files if name.endswith(":quantiles")]
    assert quantiles
    assert all(0 <= found[0] <= found[-1] <= 1 for found in quantiles)


@pytest.mark.slow
def test_looking_on_changes_nothing_and_a_resumed_run_writes_the_same(tiny, tmp_path):
    plain = train(tiny(run_dir=tmp_path / "plain"))
    watched = {"log_dynamics": True, "run_dir": tmp_path / "watched"}
    train(tiny(**watched, iterations_to_run=9))
    train(tiny(**watched))
    whole = train(tiny(log_dynamics=True, run_dir=tmp_path / "whole"))
    losses = [
        [row["train/loss"] for row in rows(run / "metrics.jsonl")]
        for run in (plain, tmp_path / "watched", whole)
    ]
    assert losses[0] == losses[1] == losses[2]
    assert rows(tmp_path / "watched" / "dynamics.jsonl") == rows(whole / "dynamics.jsonl")


def test_tau_statistics_of_an_optimizer_without_tau_are_refused_before_training(tiny, tmp_path):
    with pytest.raises(UserError, match="--collect-tau-stats: ADana keeps no tau"):
        train(tiny(opt="adana", collect_tau_stats=True))
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
