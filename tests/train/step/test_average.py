"""Averages of the weights: the arithmetic, evaluations beside the raw weights, exact resume."""

import numpy as np
import pytest
import torch
from torch import nn

from danalab.errors import UserError
from danalab.train import train
from danalab.train.checkpoint import tensors
from danalab.train.run.folder import RunFolder
from danalab.train.run.metrics import read_rows
from danalab.train.run.open import open_run
from danalab.train.step.average import AVERAGE, WeightAverage


def averaged(decay, weights):
    """The average after each of the values that a weight takes; None is a skipped update."""
    model = nn.Linear(1, 1, bias=False)
    average = WeightAverage(model, decay)
    values = []
    for weight in weights:
        if weight is not None:
            nn.init.constant_(model.weight, weight)
            average.update()
        values.append(average.stored()["weight"].item() if average.count else None)
    return values


def test_it_is_its_formula():
    w = np.arange(1.0, 11) ** 2
    ema = [1.0]
    for n in range(2, 11):
        ema.append(ema[-1] + max(0.2, 1 / n) * (w[n - 1] - ema[-1]))
    assert averaged(0.8, w) == pytest.approx(ema)


def test_a_skipped_update_does_not_count():
    assert averaged(0.5, [None, 4.0, None, 2.0]) == [None, 4.0, 4.0, 3.0]


def test_a_model_has_the_average_only_for_a_while():
    model = nn.Linear(3, 2)
    before = model.weight.detach().clone()
    average = WeightAverage(model, 0.5)
    average.update()
    nn.init.zeros_(model.weight)
    average.update()
    with average.in_place():
        assert torch.equal(model.weight, before / 2)
    assert not model.weight.any()
    assert torch.equal(average.stored()["weight"], before / 2)


def test_a_resumed_run_has_the_same_average_and_the_raw_run_is_unchanged(tiny, tmp_path):
    small = {"iterations": 6, "eval_interval": 3, "ckpt_interval": 0}
    raw = train(tiny(**small, run_dir=tmp_path / "raw"))
    whole = train(tiny(**small, ema=0.6, run_dir=tmp_path / "whole"))
    train(tiny(**small, ema=0.6, run_dir=tmp_path / "resumed", iterations_to_run=4))
    resumed = train(tiny(**small, ema=0.6, run_dir=tmp_path / "resumed"))
    rows = [read_rows(run / "metrics.jsonl") for run in (raw, whole, resumed)]
    assert [row["val/loss"] for row in rows[0] if "val/loss" in row] == [
        row["val/loss"] for row in rows[1] if "val/loss" in row
    ]
    ours, theirs = ([row.get("val/loss_average") for row in each] for each in rows[1:])
    assert ours == theirs
    assert sum(loss is not None for loss in ours) == 2
    assert open_run(whole).summary["val/loss_average"] == open_run(resumed).summary["val/loss_average"]
    states = []
    for run in (whole, resumed):
        model = open_run(run).load_model().model
        tensors.read(RunFolder(run).store.path(6), model, prefix=AVERAGE)
        states.append(model.state_dict())
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


@pytest.mark.slow
def test_an_average_that_is_added_later_starts_there(tiny, caplog):
    run = train(tiny(iterations_to_run=10))
    train(tiny(ema=0.9))
    assert "has no average with --ema 0.9; it starts here" in caplog.text
    assert "val/loss_average" in open_run(run).summary


def test_optimizers_and_workers_with_averages_of_their_own_are_refused(tiny):
    with pytest.raises(UserError, match="averages the weights itself"):
        train(tiny(opt="sf-adamw", ema=0.9))
    with pytest.raises(UserError, match="DiLoCo's outer weights"):
        train(tiny(ema=0.9, nproc=2, distributed_backend="diloco"))
