"""Merged checkpoints: the weights are those of a decay, and the result is a run like any other."""

import json
import math

import numpy as np
import pytest
import torch

from danalab.cli.app import main
from danalab.errors import UserError
from danalab.optim.schedules import get_schedule
from danalab.train import train
from danalab.train.evaluation import evaluate_run
from danalab.train.run.exchange import export_run
from danalab.train.run.merge import merge_run, merge_weights
from danalab.train.run.open import open_run


@pytest.mark.parametrize("decay", ["linear", "cosine", "1-sqrt"])
def test_checkpoints_of_every_step_give_exactly_the_decayed_sum_of_updates(decay):
    updates, start = np.random.default_rng(0).normal(size=20), 8
    weights = np.cumsum(updates)  # after steps 1..20 at a constant rate
    factor = get_schedule("wsd", 20, 0, fract_decay=12 / 20, decay_type=decay)
    decayed = sum(factor(i) * updates[i] for i in range(20))
    merged = merge_weights(range(start, 21), decay) @ weights[start - 1 :]
    assert merged == pytest.approx(decayed)


def test_weights_of_uneven_checkpoints():
    # linear: means of 1 - x over [0, 1/4] and [1/4, 1], taken at the beginning of each of 4000 steps
    assert merge_weights([100, 1100, 4100], "linear") == pytest.approx([1 / 8, 1 / 2, 3 / 8], abs=2e-4)
    assert merge_weights([0, 1000], "1-sqrt") == pytest.approx([2 / 3, 1 / 3], abs=1e-3)
    assert math.fsum(merge_weights([3, 4, 9, 11], "cosine")) == pytest.approx(1)


@pytest.fixture
def constant(tiny):
    settings = {"iterations": 8, "ckpt_interval": 4, "keep_steps": ("2",), "eval_interval": 0, "final_eval_batches": 0}
    return train(tiny(**settings, scheduler="none", ema=0.5))


def test_a_merged_run_is_evaluated_exported_and_started_from(constant, tiny, tmp_path, capsys):
    out = tmp_path / "merged"
    main(["merge", str(constant), "--steps", "2", "4", "8", "--as", "linear", "--out", str(out), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["steps"] == [2, 4, 8]
    assert told["weights"] == pytest.approx(merge_weights([2, 4, 8], "linear"))
    states = [open_run(constant).load_model(step).model.state_dict() for step in (2, 4, 8)]
    for name, value in open_run(out).load_model().model.state_dict().items():
        expected = sum(c * state[name] for c, state in zip(told["weights"], states, strict=True))
        torch.testing.assert_close(value, expected)
    result = evaluate_run(out)
    assert (result.step, result.split) == (8, "val")
    export_run(out, tmp_path / "hf")
    assert "checkpoints [2, 4, 8], as linear" in (tmp_path / "hf" / "README.md").read_text()
    train(tiny(init_from=out, iterations=1, run_dir=tmp_path / "on"))
    with pytest.raises(UserError, match="merged model; take another --run-dir"):
        train(tiny(run_dir=out))


def test_the_average_of_a_run_becomes_a_run(constant, tmp_path):
    merged = merge_run(constant, tmp_path / "average", decay="average")
    assert (merged.steps, merged.weights) == ((8,), (1.0,))
    summary = open_run(constant).summary
    assert evaluate_run(merged.folder).loss == pytest.approx(summary["val/loss_average"], rel=1e-6)
    assert summary["val/loss_average"] != pytest.approx(summary["val/loss"], rel=1e-6)


@pytest.mark.slow
def test_what_cannot_be_merged_is_one_line(constant, tiny, tmp_path, caplog):
    for steps, decay, words in (
        ([8], "linear", "at least two checkpoints; .* has: 2, 4, 8"),
        ([3, 8], "linear", "no checkpoint of step 3; there are: 2, 4, 8"),
        ([4, 8], "average", "takes one checkpoint, not 2"),
    ):
        with pytest.raises(UserError, match=words):
            merge_run(constant, tmp_path / "new", steps=steps, decay=decay)
    with pytest.raises(UserError, match="exists"):
        merge_run(constant, constant)
    other = train(tiny(iterations=8, ckpt_interval=4, run_dir=tmp_path / "falling"))
    with pytest.raises(UserError, match="the run keeps no such weights"):
        merge_run(other, tmp_path / "none", decay="average")
    merge_run(other, tmp_path / "warned")
    assert "the weights assume a constant one" in caplog.text
