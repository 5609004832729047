"""Optimizers in a file of the user: what a run knows of them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from danalab.data import open_dataset
from danalab.optim.catalogue import OPTIMIZERS
from danalab.scaling.plan import plan
from danalab.experiments.cells import name_of
from danalab.train.config.resolve import resolve
from danalab.train.job import train

CODE = """
import torch
from danalab.optim import ADana, DanaMuon

class Mine(ADana):
    pass

class Matrices(DanaMuon):
    pass

class Other(torch.optim.SGD):
    pass
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "mine.py").write_text(CODE)
    return tmp_path / "mine.py"


@pytest.mark.parametrize(("name", "of"), [("Mine", "adana"), ("Matrices", "dana-muon")])
def test_a_class_made_from_one_of_ours_has_its_rate_and_its_weight_decay(file, name, of):
    own, ours = (plan("enoki", opt, 3, iterations=50) for opt in (f"{file}:{name}", of))
    assert own.wd_ts is not None
    assert (own.lr, own.weight_decay, own.wd_ts) == (ours.lr, ours.weight_decay, ours.wd_ts)
    assert "the class that it is made from" in own.lr_source


def test_nothing_is_known_of_another_class(file):
    row = OPTIMIZERS.get(f"{file}:Other")
    assert (row.decay, row.decay_falls, row.rate, row.elementwise) == ("coupled", False, None, False)


def test_a_run_of_a_subclass_makes_the_steps_of_its_class(file, tiny, tmp_path):
    losses = []
    for opt in (f"{file}:Mine", "adana"):
        run = tmp_path / opt.rpartition(":")[2]
        train(tiny(opt=opt, run_dir=run, lr=None))
        rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        losses.append([row["train/loss"] for row in rows if "train/loss" in row])
    assert losses[0] == losses[1] != []


def test_folders_are_named_for_the_file_and_the_class(file, tiny):
    named = replace(tiny(opt=f"{file}:Mine"), run_dir=None)
    assert resolve(named, open_dataset(named.data)).execution.run_dir.name.startswith("enoki-mine.py-Mine-d32x2-")
    assert name_of({"opt": f"{file}:Mine", "seed": 1}) == "mine.py-Mine-s1"
