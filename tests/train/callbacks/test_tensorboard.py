import sys

import pytest

from danalab.errors import MissingExtra
from danalab.train.trackers import TensorBoardMirror


def scalars_of(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboards_own_reader_finds_every_number_at_its_step(tmp_path, watching):
    mirror = TensorBoardMirror(watching())
    mirror.on_start(0)
    for step in (1, 2):
        mirror.on_row({"step": step, "train/loss": 0.5 * step, "note": "words are left out", "mfu": None})
    mirror.close()
    assert scalars_of(tmp_path / "tensorboard") == {
        "step": [(1, 1.0), (2, 2.0)],
        "train/loss": [(1, 0.5), (2, 1.0)],
    }


def test_a_resumed_run_hides_what_was_written_past_its_step(tmp_path, watching):
    for start, rows in ((0, [(1, 1.0), (2, 9.0), (3, 9.0)]), (1, [(2, 2.0)])):
        mirror = TensorBoardMirror(watching())
        mirror.on_start(start)
        for step, loss in rows:
            mirror.on_row({"step": step, "train/loss": loss})
        mirror.close()
    assert scalars_of(tmp_path / "tensorboard")["train/loss"] == [(1, 1.0), (2, 2.0)]


def test_without_tensorboard_the_extra_is_named_before_training(monkeypatch, watching):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtra, match=r"danalab\[track\]"):
        TensorBoardMirror(watching())
