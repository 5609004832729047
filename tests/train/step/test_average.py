"""Averages of the weights: the arithmetic, evaluations beside the raw weights, exact resume."""

import numpy as np
import pytest
import torch
from torch import nn

from danalab.errors import UserError
from danalab.train import TrainConfig, train
from danalab.train.checkpoint.weights import read_weights
from danalab.train.run.folder import RunFolder
from danalab.train.run.metrics import is_known, read_rows
from danalab.train.run.open import open_run
from danalab.train.step.average import AVERAGE, WeightAverage

YES, NO = torch.tensor(True), torch.tensor(False)


def averaged(rule, weights, iterations=10):
    """The average after each of the values that a weight takes; None is a skipped update."""
    model = nn.Linear(1, 1, bias=False)
    average = WeightAverage(model, rule, iterations)
    values = []
    for step, weight in enumerate(weights, 1):
        if weight is not None:
            nn.init.constant_(model.weight, weight)
        average.update(step, NO if weight is None else YES)
        values.append(average.stored()[AVERAGE + "weight"].item() if average.begun else None)
    return values


def test_the_rules_are_their_formulas():
    w = np.arange(1.0, 11) ** 2
    assert averaged(("tail", 0.3), w)[:7] == [None] * 7
    assert averaged(("tail", 0.3), w)[7:] == pytest.approx([64, 72.5, 245 / 3])
    ema = [1.0]
    for n in range(2, 11):
        ema.append(ema[-1] + max(0.2, 1 / n) * (w[n - 1] - ema[-1]))
    assert averaged(("ema", 0.8), w) == pytest.approx(ema)
    # rate 2/(2 + n - 1): the weights of the past are proportional to the step
    assert averaged(("log", 2.0), w)[-1] == pytest.approx((w * np.arange(1, 11)).sum() / 55)


def test_a_skipped_update_does_not_count():
    assert averaged(("ema", 0.5), [None, 4.0, None, 2.0]) == [None, 4.0, 4.0, 3.0]


def test_a_model_has_the_average_only_for_a_while():
    model = nn.Linear(3, 2)
    before = model.weight.detach().clone()
    average = WeightAverage(model, ("ema", 0.5), 10)
    average.update(1, YES)
    nn.init.zeros_(model.weight)
    average.update(2, YES)
    with average.in_place():
        assert torch.equal(model.weight, before / 2)
    assert not model.weight.any()
    assert torch.equal(average.stored()[AVERAGE + "weight"], before / 2)


@pytest.mark.parametrize("average", ["mean:3", "ema", "ema:1", "tail:x", "log:0", "log:inf"])
def test_a_rule_that_cannot_be_read_is_refused(average):
    with pytest.raises(UserError, match=r"--average .*is expected"):
        TrainConfig(average=average)
    with pytest.raises(UserError, match="leave one of them out"):
        TrainConfig(average="ema:0.9", ema=0.9)


def test_a_resumed_run_has_the_same_average_and_the_raw_run_is_unchanged(tiny, tmp_path):
    small = {"iterations": 6, "eval_interval": 3, "ckpt_interval": 0}
    raw = train(tiny(**small, run_dir=tmp_path / "raw"))
    whole = train(tiny(**small, ema=0.6, run_dir=tmp_path / "whole"))
    train(tiny(**small, ema=0.6, run_dir=tmp_path / "resumed", iterations_to_run=4))
    resumed = train(tiny(**small, ema=0.6, run_dir=tmp_path / "resumed"))
    rows = [read_rows(run / "metrics.jsonl") for run in (raw, whole, resumed)]
    assert all(is_known(key) for row in rows[1] for key in row)
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
        read_weights(RunFolder(run).store.path(6), model, AVERAGE)
        states.append(model.state_dict())
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


@pytest.mark.slow
def test_an_average_that_is_added_later_starts_there(tiny, caplog):
    run = train(tiny(iterations_to_run=10))
    train(tiny(average="log:4", iterations_to_run=5))
    assert "has no average log:4; it starts here" in caplog.text
    train(tiny(average="tail:0.5"))
    assert "has no average tail:0.5; it starts here" in caplog.text
    assert "val/loss_average" in open_run(run).summary


def test_optimizers_and_workers_with_averages_of_their_own_are_refused(tiny):
    with pytest.raises(UserError, match="averages the weights itself"):
        train(tiny(opt="sf-adamw", ema=0.9))
    with pytest.raises(UserError, match="DiLoCo's outer weights"):
        train(tiny(ema=0.9, nproc=2, distributed_backend="diloco"))
