"""A callback is one file and one line of a table; it hears what happened, and may add to rows."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import ClassVar

import pytest

from danalab.train import job as job_module
from danalab.train.callbacks.base import Callback
from danalab.train.job import build_trainer, run_training
from danalab.train.run.metrics import read_rows


class Recorder(Callback):
    name = "recorder"
    calls: ClassVar[list] = []

    def before_update(self, step):
        self.calls.append(("before", step))

    def after_update(self, step):
        self.calls.append(("after", step))

    def on_skip(self, step):
        self.calls.append(("skip", step))

    def metrics(self, step):
        assert self.context.consumption.tokens(step) == step * self.context.spec.tokens_per_step
        return {"own/twice": 2.0 * step}


@pytest.fixture
def registered(monkeypatch):
    """What the recipe for a new callback does: a module, and a line in the build."""
    module = ModuleType("new_callback")
    module.Recorder = Recorder  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "new_callback", module)
    monkeypatch.setattr(job_module, "CALLBACKS", [*job_module.CALLBACKS, (None, "new_callback:Recorder")])
    Recorder.calls = []
    return Recorder


def test_a_registered_callback_adds_to_the_rows(tiny, registered):
    outcome = run_training(tiny(iterations=4, log_interval=2))
    rows = read_rows(outcome.folder / "metrics.jsonl")
    assert [(row["step"], row["own/twice"]) for row in rows] == [(1, 2.0), (2, 4.0), (4, 8.0)]


def test_a_skipped_step_is_reported_as_skipped_and_not_as_made(tiny, registered, monkeypatch):
    def build(*args, **kwargs):
        trainer = build_trainer(*args, **kwargs)
        weight = trainer.model.get_parameter("final_norm.weight")
        weight.register_hook(lambda g: g * float("nan") if trainer.step == 1 else g)
        return trainer

    monkeypatch.setattr(job_module, "build_trainer", build)
    run_training(tiny(iterations=3, on_nonfinite="skip", log_dynamics=True))
    assert registered.calls == [("before", 1), ("after", 1), ("skip", 2), ("before", 3), ("after", 3)]


def test_a_skipped_step_has_no_row_of_dynamics(tiny, monkeypatch):
    def build(*args, **kwargs):
        trainer = build_trainer(*args, **kwargs)
        weight = trainer.model.get_parameter("final_norm.weight")
        weight.register_hook(lambda g: g * float("nan") if trainer.step == 1 else g)
        return trainer

    monkeypatch.setattr(job_module, "build_trainer", build)
    outcome = run_training(tiny(iterations=3, log_interval=1, on_nonfinite="skip", log_dynamics=True))
    assert [row["step"] for row in read_rows(outcome.folder / "dynamics.jsonl")] == [1, 3]
    assert [row["step"] for row in read_rows(outcome.folder / "metrics.jsonl")] == [1, 2, 3]
