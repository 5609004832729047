"""Saving beside training: snapshots, failures, retries."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest
import torch

from danalab.errors import UserError
from danalab.train.checkpoint import saver as saver_module
from danalab.train.checkpoint.saver import Saver, local_folder
from danalab.train.checkpoint.store import CheckpointStore


class Writer:
    """Writes a file; fails as often as it is told, and waits where it is told."""

    def __init__(self, failures: int = 0):
        self.failures, self.calls = failures, 0
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def __call__(self, tensors, folder: Path) -> None:
        self.may_go_on.wait()
        self.calls += 1
        if self.calls <= self.failures:
            (folder / "half").write_bytes(b"x")
            raise OSError(errno.ENOSPC, "No space left on device")
        torch.save(dict(tensors), folder / "tensors.pt")


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path)


def saved(store: CheckpointStore, step: int) -> torch.Tensor:
    return torch.load(store.path(step) / "tensors.pt")["w"]


def test_what_is_saved_is_the_moment_of_the_call(store):
    writer = Writer()
    writer.may_go_on.clear()
    saver, w = Saver(store, write=writer), torch.ones(3)
    saver.save(1, {"w": w}, {})
    w.fill_(2.0)
    writer.may_go_on.set()
    saver.drain()
    assert torch.equal(saved(store, 1), torch.ones(3))


def test_a_failed_save_is_told_and_tried_again(store, caplog):
    saver = Saver(store, write=Writer(failures=1), asynchronous=False)
    saver.save(1, {"w": torch.ones(3)}, {})
    assert "No space left" in caplog.text
    assert "trying again" in caplog.text
    assert store.steps() == [1]


def test_a_disk_that_stays_full_costs_a_checkpoint_and_not_the_run(store, caplog):
    writer = Writer()
    saver = Saver(store, write=writer, asynchronous=False)
    saver.save(1, {"w": torch.ones(3)}, {}, wait=True)
    writer.failures = writer.calls + 2
    saver.save(2, {"w": torch.ones(3)}, {})
    saver._finish()
    assert caplog.text.count("training continues") == 1
    assert [path.name for path in store.folder.iterdir()] == ["step-00000001"]
    saver.save(3, {"w": torch.ones(3)}, {}, wait=True)
    assert store.steps() == [1, 3]


def test_the_last_save_that_fails_says_what_is_safe(store):
    writer = Writer()
    saver = Saver(store, write=writer)
    saver.save(1, {"w": torch.ones(3)}, {}, wait=True)
    writer.failures = 99
    with pytest.raises(UserError, match=r"No space left.*the last good one is .*step-00000001"):
        saver.save(2, {"w": torch.ones(3)}, {}, wait=True)
    assert store.steps() == [1]


def test_older_ones_go_only_after_the_newer_is_committed(store):
    writer = Writer()
    saver = Saver(store, write=writer)
    for step in (1, 2):
        saver.save(step, {"w": torch.ones(3)}, {}, wait=True)
    writer.may_go_on.clear()
    saver.save(3, {"w": torch.ones(3)}, {})
    assert store.steps() == [1, 2]
    writer.may_go_on.set()
    saver.drain()
    assert store.steps() == [2, 3]


def test_a_step_that_is_safe_is_not_written_twice(store):
    writer = Writer()
    saver = Saver(store, write=writer)
    for _ in range(2):
        saver.save(1, {"w": torch.ones(3)}, {}, wait=True)
    assert writer.calls == 1


# ---- by way of a local disk ----


def test_a_local_disk_is_used_and_left_empty(store, tmp_path):
    disk = local_folder(tmp_path, tmp_path / "run", rank=0)
    seen: list[Path] = []

    def write(tensors, folder: Path) -> None:
        seen.append(folder)
        Writer()(tensors, folder)

    saver = Saver(store, write=write, local_folder=disk)
    saver.save(1, {"w": torch.ones(3)}, {}, wait=True)
    assert disk in seen[0].parents
    assert torch.equal(saved(store, 1), torch.ones(3))
    assert list(disk.iterdir()) == []


def test_a_local_disk_that_is_full_is_told_once_and_passed_by(store, tmp_path, caplog):
    def write(tensors, folder: Path) -> None:
        if folder.is_relative_to(tmp_path / "disk"):
            (folder / "half").write_bytes(b"x")
            raise OSError(errno.ENOSPC, "No space left on device")
        Writer()(tensors, folder)

    saver = Saver(store, write=write, local_folder=tmp_path / "disk" / "rank-0")
    for step in (1, 2):
        saver.save(step, {"w": torch.ones(3)}, {}, wait=True)
    assert store.steps() == [1, 2]
    assert caplog.text.count("No space left on device") == 1
    assert list((tmp_path / "disk" / "rank-0").iterdir()) == []


def test_a_full_run_folder_is_no_fault_of_the_local_disk(store, tmp_path, monkeypatch):
    saver = Saver(store, write=Writer(), local_folder=tmp_path / "disk")
    copy = saver_module.copy_files

    def full(source: Path, target: Path) -> None:
        copy(source, target)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(saver_module, "copy_files", full)
    with pytest.raises(UserError, match="No space left"):
        saver.save(1, {"w": torch.ones(3)}, {}, wait=True)
    assert store.steps() == []
    monkeypatch.undo()
    saver.save(2, {"w": torch.ones(3)}, {}, wait=True)
    assert store.steps() == [2]
    assert saver._local is not None


def test_what_arrives_from_a_local_disk_is_compared(tmp_path, monkeypatch):
    (tmp_path / "from").mkdir()
    (tmp_path / "to").mkdir()
    (tmp_path / "from" / "a").write_bytes(b"tensor")
    monkeypatch.setattr(saver_module, "sha256", str)
    with pytest.raises(OSError, match="the copy differs from"):
        saver_module.copy_files(tmp_path / "from", tmp_path / "to")


def test_runs_and_ranks_on_one_machine_have_local_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_TMPDIR", str(tmp_path))
    runs = [tmp_path / "a" / "run", tmp_path / "b" / "run"]
    assert len({local_folder(None, run, rank) for run in runs for rank in (0, 1)}) == 4
    monkeypatch.delenv("SLURM_TMPDIR")
    assert local_folder(None, runs[0], 0) is None
    with pytest.raises(UserError, match="--local-ckpt-dir"):
        local_folder(tmp_path / "nowhere", runs[0], 0)


def test_the_thread_writes_with_the_gpu_of_training(store, monkeypatch):
    """A new thread has GPU 0, where every rank would start a context."""
    chosen = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(
        torch.cuda, "set_device", lambda gpu: chosen.append((gpu, threading.current_thread().name))
    )
    Saver(store, write=Writer()).save(1, {"w": torch.ones(3)}, {}, wait=True)
    assert chosen == [(3, "danalab-checkpoint_0")]
