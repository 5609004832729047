"""Weights that are not finite are never saved, and skipping steps does not hide them."""

from __future__ import annotations

import json

import pytest
import torch

from danalab.train import trainer as trainer_module
from danalab.train.run.folder import RunFolder
from danalab.train.run.open import open_run
from danalab.train.trainer import Trainer, run_training


def hooked(monkeypatch, before_step):
    """Have `before_step(trainer)` called before each step."""

    def build(*args, **kwargs):
        trainer = Trainer(*args, **kwargs)
        original = trainer._make_step

        def step(*of):
            before_step(trainer)
            return original(*of)

        trainer._make_step = step
        return trainer

    monkeypatch.setattr(trainer_module, "Trainer", build)


@pytest.mark.parametrize("mode", ["skip", "stop"])
def test_an_update_that_overflows_is_not_checkpointed(tiny, mode):
    outcome = run_training(
        tiny(opt="adamw", lr=1e38, weight_decay=0.0, warmup_steps=0, ckpt_interval=1, on_nonfinite=mode)
    )
    assert (outcome.status, outcome.exit_code) == ("nonfinite", 3)
    for step in RunFolder(outcome.folder).store.steps():
        assert all(
            torch.isfinite(p).all() for p in open_run(outcome.folder).load_model(step).model.parameters()
        )


def test_weights_that_are_not_finite_end_the_run_instead_of_ten_skips(tiny, monkeypatch):
    def spoil(trainer):
        if trainer.step == 7:
            with torch.no_grad():
                trainer.model.get_parameter("final_norm.weight")[0] = float("inf")

    hooked(monkeypatch, spoil)
    outcome = run_training(tiny(on_nonfinite="skip"))
    assert (outcome.status, outcome.summary["skipped"]) == ("nonfinite", 0)
    seen = json.loads((outcome.folder / "nonfinite.json").read_text())
    assert seen == {"step": 8, "parameters": ["final_norm.weight"]}
    assert RunFolder(outcome.folder).store.steps() == [5]
