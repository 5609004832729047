"""A callback is one file and one line of a table; it hears what happened."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import ClassVar

from danalab.train import trainer as trainer_module
from danalab.train.callbacks.base import Callback
from danalab.train.trainer import run_training


class Recorder(Callback):
    name = "recorder"
    heard: ClassVar[list] = []

    def on_row(self, row):
        assert self.context.consumption.tokens(row["step"]) == row["tokens"]
        self.heard.append(row["step"])


def test_a_registered_callback_hears_the_rows(tiny, monkeypatch):
    module = ModuleType("new_callback")
    module.Recorder = Recorder  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "new_callback", module)
    monkeypatch.setattr(
        trainer_module, "CALLBACKS", [*trainer_module.CALLBACKS, (None, "new_callback:Recorder")]
    )
    run_training(tiny(iterations=4, log_interval=2))
    assert Recorder.heard == [1, 2, 4]
