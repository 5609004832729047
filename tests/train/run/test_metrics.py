"""metrics.jsonl: flushed, truncated, readable after a kill."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from danalab.errors import UserError
from danalab.train import train
from danalab.train.run.metrics import MetricsFile, read_rows, write_curve
from danalab.train.run.open import open_run


def test_rows_are_there_before_the_file_is_closed(tmp_path: Path):
    metrics = MetricsFile(tmp_path / "m.jsonl", 0)
    metrics.write({"step": 1, "train/loss": 2.5})
    assert read_rows(tmp_path / "m.jsonl") == [{"step": 1, "train/loss": 2.5}]
    metrics.close()


def test_what_json_cannot_say_is_left_out(tmp_path: Path):
    metrics = MetricsFile(tmp_path / "m.jsonl", 0)
    metrics.write({"step": 1, "a": float("nan"), "b": float("inf"), "c": None, "d": 0.0})
    metrics.close()
    assert read_rows(tmp_path / "m.jsonl") == [{"step": 1, "d": 0.0}]


class FullDisk:
    """Takes so many bytes more, and then none."""

    def __init__(self, file, room: int):
        self._file, self._room = file, room

    def write(self, data: bytes) -> int:
        if not self._room:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = self._file.write(data[: self._room])
        self._room -= taken
        return taken

    def close(self) -> None:
        self._file.close()


def test_rows_that_a_full_disk_refuses_are_written_when_there_is_room_again(tmp_path: Path, caplog):
    metrics = MetricsFile(tmp_path / "m.jsonl", 0)
    metrics.write({"step": 1})
    file, metrics._file = metrics._file, FullDisk(metrics._file, room=5)
    for step in (2, 3, 4):
        metrics.write({"step": step})
    assert caplog.text.count("No space left") == 1
    assert read_rows(tmp_path / "m.jsonl") == [{"step": 1}]
    with pytest.raises(OSError, match=r"No space left.*m.jsonl"):
        metrics.sync()
    metrics._file = file
    metrics.sync()
    metrics.write({"step": 5})
    metrics.close()
    assert [row["step"] for row in read_rows(tmp_path / "m.jsonl")] == [1, 2, 3, 4, 5]


def test_rows_that_could_not_be_written_to_the_end_are_told_of(tmp_path: Path, caplog):
    metrics = MetricsFile(tmp_path / "m.jsonl", 0)
    metrics._file = FullDisk(metrics._file, room=0)
    metrics.write({"step": 1})
    metrics.close()
    assert "its last 1 rows could not be written" in caplog.text


@settings(deadline=None)
@given(last=st.integers(0, 6), cut=st.integers(0, 10))
def test_resuming_drops_later_rows_and_a_line_cut_by_a_kill(
    tmp_path_factory: pytest.TempPathFactory, last, cut
):
    path = tmp_path_factory.mktemp("m") / "m.jsonl"
    lines = [f'{{"step": {step}}}\n' for step in range(1, 6)]
    path.write_text("".join(lines) + lines[-1][:cut])
    metrics = MetricsFile(path, last)
    metrics.write({"step": 99})
    metrics.close()
    assert [row["step"] for row in read_rows(path)] == [*range(1, min(last, 5) + 1), 99]


def test_a_broken_row_in_the_middle_is_named(tmp_path: Path):
    (tmp_path / "m.jsonl").write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(UserError, match=r"m.jsonl:2"):
        read_rows(tmp_path / "m.jsonl")


def test_the_summary_has_the_loss_of_the_last_step_also_where_it_has_no_row(tiny):
    folder = train(tiny(log_interval=10, ckpt_interval=0, iterations_to_run=7))
    assert [row["step"] for row in open_run(folder).metrics()] == [1]
    stopped = (open_run(folder).summary or {})["train/loss"]
    every = train(tiny(log_interval=1, ckpt_interval=0, iterations_to_run=7, run_dir=folder.parent / "every"))
    assert stopped == open_run(every).metrics()[-1]["train/loss"]


def test_a_run_that_ends_worse_than_a_guess_is_marked_as_diverged(tiny):
    assert "diverged" not in (open_run(train(tiny())).summary or {})
    folder = train(tiny(lr=30.0, grad_clip=0.0, run_dir=tiny().run_dir.parent / "wild"))
    assert (open_run(folder).summary or {})["diverged"] is True


def test_a_curve_is_drawn_of_what_there_is(tmp_path):
    rows = [{"step": 1, "tokens": 10, "train/loss": 3.0}, {"step": 2, "tokens": 20, "val/loss": 2.0}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_curve(tmp_path, 256)
    assert (tmp_path / "curve.png").read_bytes()[1:4] == b"PNG"
    assert "<svg" in (tmp_path / "curve.svg").read_text()
