"""One process at a time writes to a run folder."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from danalab.errors import UserError
from danalab.train.run.folder import RunFolder


def test_a_locked_folder_is_refused_and_its_holder_named(tmp_path: Path):
    with RunFolder(tmp_path).locked():
        with pytest.raises(UserError, match=f"process {os.getpid()} on "):
            with RunFolder(tmp_path).locked():
                pass
    with RunFolder(tmp_path).locked():
        pass


def test_a_killed_process_leaves_no_lock(tmp_path: Path):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with RunFolder(tmp_path).locked():
            os.write(writing, b"x")
            signal.pause()
    os.read(reading, 1)
    with pytest.raises(UserError, match=f"process {child}"):
        with RunFolder(tmp_path).locked():
            pass
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with RunFolder(tmp_path).locked():
        pass


@pytest.mark.parametrize(
    ("before", "made", "left"),
    [
        ([], ["tokenizer/a"], []),  # a tracker that is not installed is found after the tokenizer is kept
        ([], ["config.json"], [".lock", "config.json"]),
        (["log.txt"], [], [".lock", "log.txt"]),
    ],
)
def test_a_run_that_is_refused_leaves_no_new_folder(tmp_path: Path, before, made, left):
    def touch(names):
        for name in names:
            (tmp_path / "run" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "run" / name).write_text("")

    def refuse():
        with RunFolder(tmp_path / "run").locked():
            touch(made)
            raise UserError("refused")

    touch(before)
    with pytest.raises(UserError, match="refused"):
        refuse()
    assert sorted(path.name for path in tmp_path.glob("run/*")) == left


def test_a_folder_that_cannot_be_made_is_said_in_one_line(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        with RunFolder(tmp_path / "file" / "run").locked():
            pass
