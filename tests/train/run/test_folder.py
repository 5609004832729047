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


def test_a_folder_that_cannot_be_made_is_said_in_one_line(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        with RunFolder(tmp_path / "file" / "run").locked():
            pass


# ---- a folder from somebody else ----


def test_a_lock_that_is_a_link_or_another_file_is_refused_and_its_target_kept(tmp_path: Path):
    run, victim = tmp_path / "run", tmp_path / "victim"
    run.mkdir()
    victim.write_text("precious")
    for place in (Path.symlink_to, Path.hardlink_to):
        place(run / ".lock", victim)
        with pytest.raises(UserError, match=r"\.lock: (a symbolic link|not a lock file)"):
            with RunFolder(run).locked():
                pass
        assert not RunFolder(run).is_locked()
        (run / ".lock").unlink()
        assert victim.read_text() == "precious"


def test_a_lock_that_is_a_pipe_is_refused_without_waiting(tmp_path: Path):
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(UserError, match="not a lock file"):
        with RunFolder(tmp_path).locked():
            pass


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoints", "tokenizer", "tau", "config.json"])
def test_a_link_in_a_run_folder_is_refused_before_anything_is_written(tmp_path: Path, name: str):
    run, outside = tmp_path / "run", tmp_path / "outside"
    run.mkdir()
    outside.mkdir()
    (run / name).symlink_to(outside)
    with pytest.raises(UserError, match=f"{name}: a symbolic link"):
        with RunFolder(run).locked():
            pass
    assert list(outside.iterdir()) == []
    os.rename(run, tmp_path / "real")
    (tmp_path / "real" / name).unlink()
    run.symlink_to(tmp_path / "real")
    with RunFolder(run).locked():  # the folder as a whole may be a link
        pass


@pytest.mark.parametrize(
    "place", ["profile/trace-00000007-rank0.json.gz", "checkpoints/step-00000001", "wandb"]
)
def test_links_to_places_outside_of_the_folder_are_refused_at_any_depth(tmp_path: Path, place: str):
    target = tmp_path / "precious"
    target.write_text("kept")
    link = tmp_path / "run" / place
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)
    with pytest.raises(UserError, match="a symbolic link"), RunFolder(tmp_path / "run").locked():
        pass
    assert target.read_text() == "kept"


def test_names_of_checkpoints_are_links_within_the_folder(tmp_path: Path):
    (tmp_path / "checkpoints" / "step-00000001").mkdir(parents=True)
    RunFolder(tmp_path).store.name(1, "before-decay")
    with RunFolder(tmp_path).locked():
        pass
