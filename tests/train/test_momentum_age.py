"""The momentum's age as a setting of runs and sweeps: logged, resumed bit for bit, and kept in a longer run."""

from __future__ import annotations

import pytest
import torch

from danalab.experiments.cells import expand, parse_assignments
from danalab.train.job import train
from danalab.train.run.open import open_run


@pytest.mark.sample(2)
@pytest.mark.parametrize("settings", [{}, {"buffers": 2}], ids=["one", "buffers"])
@pytest.mark.parametrize("opt", ["adana", "muon"])
def test_a_run_in_parts_is_bitwise_the_run_in_one_and_logs_its_age(tiny, tmp_path, opt, settings):
    memory = {"age": "follow(8, 4, 1, 0.5)", **settings}
    given = {"opt": opt, "n_layers": 1, "iterations": 12, "optimizer_settings": memory}
    whole = open_run(train(tiny(**given, run_dir=tmp_path / "whole")))
    train(tiny(**given, run_dir=tmp_path / "parts", iterations_to_run=7))
    parts = open_run(train(tiny(**given, run_dir=tmp_path / "parts")))
    pairs = zip(whole.load_model().model.parameters(), parts.load_model().model.parameters(), strict=True)
    assert all(torch.equal(p, q) for p, q in pairs)
    ages = [row["optim/age"] for row in parts.metrics()]
    assert ages == [row["optim/age"] for row in whole.metrics()]
    assert max(ages) > ages[-1] == pytest.approx(0.5)
    longer = open_run(train(tiny(**given, run_dir=tmp_path / "parts", extend_to=14)))
    assert longer.metrics()[-1]["optim/age"] <= ages[-1] + 2


def test_a_sweep_has_ages_with_their_numbers():
    grid = parse_assignments(["opt=muon,adana", "age=constant(20),follow(8, 60, 1, 8),none", "seed=0"])
    assert grid["age"] == ["constant(20)", "follow(8, 60, 1, 8)", None]
    names = [cell.name for cell in expand(grid, {"heads": 3})]
    assert names[:2] == ["muon-ageconstant(20)-s0", "muon-agefollow(8,60,1,8)-s0"]
