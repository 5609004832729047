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

    run = train(tiny(opt="dana-star", tensorboard=True, collect_tau_stats=True, peak_tflops=0.1))
    metrics = rows(run / "metrics.jsonl")
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    mirrored = {event.step: event.value for event in events.Scalars("train/loss")}
    assert mirrored == pytest.approx({row["step"]: row["train/loss"] for row in metrics})
    assert 0 < metrics[-1]["mfu"] < 1
    tau = np.load(run / "tau" / "tau-step-00000020.npz")
    assert tau["step"] == 20
    quantiles = [tau[name] for name in tau.files if name.endswith(":quantiles")]
    assert quantiles
    assert all(0 <= found[0] <= found[-1] <= 1 for found in quantiles)


def test_tau_statistics_of_an_optimizer_without_tau_are_refused_before_training(tiny, tmp_path):
    with pytest.raises(UserError, match="--collect-tau-stats: ADana keeps no tau"):
        train(tiny(opt="adana", collect_tau_stats=True))
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
