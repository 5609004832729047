"""`danalab optim schedules`: the numbers are those that the optimizers use, step by step."""

from __future__ import annotations

import csv
import json

import pytest
import torch

from danalab.cli.app import main
from danalab.cli.optim_more import RunSchedules
from danalab.errors import UserError
from danalab.optim import ADana, get_schedule, lr_scheduler
from danalab.showcase.schedules import schedule_figure, schedule_table


def test_every_number_is_the_one_a_training_optimizer_reports():
    run = RunSchedules(steps=40, lr=2e-3, delta=(5.0,), kappa=(0.7,), omega=3.0, warmup_steps=4)
    table = schedule_table(run)
    p = torch.ones(2, requires_grad=True)
    optimizer = ADana([p], lr=2e-3, delta=5.0, kappa=0.7, omega=3.0, horizon=40)
    scheduler = lr_scheduler(optimizer, get_schedule("cos_inf", 40, 4))
    for t in range(1, 41):
        p.grad = torch.ones(2)
        optimizer.step()
        used, row = optimizer.coefficients(), table.at(t)
        for name in ("lr", "schedule", "beta", "alpha", "lambda"):
            assert row[name] == pytest.approx(used[name], rel=1e-12), (t, name)
        assert row["decay"] == pytest.approx(used["schedule"] * used["lambda"], rel=1e-9)
        scheduler.step()


def test_several_values_have_a_column_and_a_line_each():
    run = RunSchedules(steps=200, kappa=(0.5, 1.0), delta=(4.0, 8.0, 16.0))
    table = schedule_table(run)
    assert {"alpha[kappa=0.5]", "alpha[kappa=1]", "beta[delta=16]"} <= set(table.columns)
    assert set(table.columns["alpha[kappa=1]"]) == {1.0}
    gain, alpha = schedule_figure(run, table).axes[:2]
    assert [text.get_text() for text in alpha.get_legend().get_texts()] == [r"$\kappa$ = 0.5", r"$\kappa$ = 1"]
    assert len(gain.get_legend().get_texts()) == 3


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_a_constant_or_absent_weight_decay_is_drawn_too(weight_decay):
    run = RunSchedules(steps=10, omega=None, weight_decay=weight_decay, scheduler="none")
    table = schedule_table(run)
    assert set(table.columns["lambda"]) == {weight_decay}
    schedule_figure(run, table)


@pytest.mark.slow
def test_the_command_writes_pictures_and_a_row_a_step(tmp_path, capsys):
    arguments = ["optim", "schedules", "--steps", "50", "--scheduler", "wsd", "--fract-decay", "0.5"]
    assert main([*arguments, "--out", str(tmp_path / "s"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"][-1]["step"] == 50
    assert {path.name for path in (tmp_path / "s").iterdir()} == {
        f"schedules.{kind}" for kind in ("png", "svg", "pdf", "csv")
    }
    rows = list(csv.DictReader((tmp_path / "s" / "schedules.csv").open()))
    assert [int(row["step"]) for row in rows] == list(range(1, 51))
    assert float(rows[0]["lambda"]) == pytest.approx(min(4 / (5 + 1), 2 * 1e-3))


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ({"scheduler": "cosine"}, "unknown schedule 'cosine'"),
        ({"delta": (-1.0,)}, "delta is -1.0"),
        ({"omega": 4.0, "weight_decay": 0.1}, "both set the weight decay"),
        ({"kappa": ()}, "at least one value"),
        ({"steps": 10, "warmup_steps": 10}, "does not fit"),
    ],
)
def test_settings_that_no_run_can_mean_are_refused(flags, complaint):
    with pytest.raises(UserError, match=complaint):
        schedule_table(RunSchedules(**flags))
