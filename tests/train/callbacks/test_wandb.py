import json
import sys

import pytest

from danalab.errors import MissingExtra, UserError
from danalab.train.trackers import WandbMirror


class FakeError(Exception):
    pass


class FakeRun:
    def __init__(self):
        self.rows, self.summary, self.finished, self.metrics = [], {}, False, []

    def define_metric(self, name, step_metric):
        self.metrics.append((name, step_metric))

    def log(self, row, step):
        assert step == row["step"], "the library's own count starts anew in an offline run that is resumed"
        self.rows.append(row)

    def finish(self):
        self.finished = True


class FakeWandb:
    """Stands in for the library where only our calls are looked at."""

    Error = FakeError

    def __init__(self, fails=False):
        self.calls, self.run, self.fails = [], FakeRun(), fails

    def Settings(self, **settings):  # noqa: N802 - the library's name
        return settings

    def init(self, **settings):
        if self.fails:
            raise FakeError("no route to host\nand a traceback")
        self.calls.append(settings)
        return self.run


def test_a_resumed_run_keeps_its_id_and_rows_stand_at_their_own_step(tmp_path, monkeypatch, watching):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    for _ in range(2):
        mirror = WandbMirror(watching(wandb_mode="offline"))
        mirror.on_start(0)
        mirror.on_row({"step": 7, "train/loss": 2.0})
        mirror.on_end({"val/loss": 1.5, "status": "finished"})
        mirror.close()
    first, second = fake.calls
    assert first["id"] == second["id"] == json.loads((tmp_path / "wandb.json").read_text())["id"]
    assert first["resume"] == "allow"
    assert first["mode"] == "offline"
    assert first["config"]["opt"] == "adana"
    assert ("*", "step") in fake.run.metrics
    assert fake.run.rows[0] == {"step": 7, "train/loss": 2.0}
    assert fake.run.summary == {"final/val/loss": 1.5}
    assert fake.run.finished


def test_a_server_that_cannot_be_reached_is_one_line_with_the_way_out(tmp_path, monkeypatch, watching):
    monkeypatch.setitem(sys.modules, "wandb", FakeWandb(fails=True))
    with pytest.raises(UserError, match=r"--wandb: no route to host; .*--wandb-mode offline") as caught:
        WandbMirror(watching()).on_start(0)
    with pytest.raises(UserError, match=r"--wandb: no route to host$"):
        WandbMirror(watching(wandb_mode="offline")).on_start(0)
    (tmp_path / "wandb.json").write_text("[]")
    with pytest.raises(UserError, match=r"wandb\.json: "):
        WandbMirror(watching()).on_start(0)
    assert "\n" not in str(caught.value)


def test_without_wandb_the_extra_is_named_before_training(monkeypatch, watching):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtra, match=r"danalab\[track\]"):
        WandbMirror(watching())


@pytest.mark.slow
def test_the_real_library_logs_offline_and_ends(tmp_path, monkeypatch, watching):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    mirror = WandbMirror(watching(wandb_project="test", wandb_mode="offline"))
    mirror.on_start(0)
    for step in (1, 2):
        mirror.on_row({"step": step, "train/loss": 1.0 / step})
    mirror.on_end({"val/loss": 1.0})
    mirror.close()
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
