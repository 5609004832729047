"""The protocol: a checkpoint is whole or absent, whatever happens while it is written."""

from __future__ import annotations

import errno
import os
import resource
import signal
from pathlib import Path

import pytest
import torch

from danalab.errors import UserError
from danalab.train.checkpoint import tensors
from danalab.train.checkpoint.store import CheckpointStore, verify, why_unusable


def write(store: CheckpointStore, step: int, content: bytes = b"tensor") -> Path:
    return store.write(
        step, {"step": step}, lambda folder: (folder / "data.bin").write_bytes(content) and None
    )


def usable(store: CheckpointStore) -> tuple[list[int], list[str]]:
    found = {path: why_unusable(path) for _, path in sorted(store._folders(), reverse=True)}
    good = [path for path, reason in found.items() if reason is None]
    assert not good or store.newest() == good[0]
    return [int(path.name[5:]) for path in good], [reason for reason in found.values() if reason]


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    store = CheckpointStore(tmp_path / "checkpoints")
    write(store, 10)
    write(store, 20)
    return store


def test_newest_comes_first(store):
    assert usable(store) == ([20, 10], [])


@pytest.mark.parametrize("name", ["data.bin", "meta.json", "manifest.json", "COMMIT"])
def test_a_flipped_byte_in_any_file_is_found(store, name):
    file = store.path(20) / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    good, reasons = usable(store)
    assert good == [10]
    assert len(reasons) == 1


@pytest.mark.parametrize("name", ["data.bin", "meta.json", "manifest.json", "COMMIT"])
def test_a_missing_or_truncated_file_is_found(store, name):
    (store.path(10) / name).unlink()
    file = store.path(20) / name
    file.write_bytes(file.read_bytes()[:-2])
    good, reasons = usable(store)
    assert good == []
    assert len(reasons) == 2


def test_the_reason_names_the_file(store):
    (store.path(20) / "data.bin").write_bytes(b"short")
    with pytest.raises(UserError, match=r"step-00000020: data.bin is damaged"):
        verify(store.path(20))


def test_an_existing_step_is_written_again(store):
    write(store, 20, b"other")
    assert usable(store) == ([20, 10], [])
    assert (store.path(20) / "data.bin").read_bytes() == b"other"


def test_retention_keeps_the_last_and_every_nth(store):
    for step in (30, 40, 50):
        write(store, step)
    store.prune(50, keep_last=2, keep_every=20)
    assert store.steps() == [20, 40, 50]


def test_checkpoints_that_are_named_are_kept(store):
    for step in (30, 40, 50):
        write(store, step)
    (store.folder / "good").symlink_to("step-00000030")
    assert store.names() == {"good": 30}
    store.prune(50, keep_last=1)
    assert store.steps() == [30, 50]
    assert (store.folder / "good" / "data.bin").read_bytes() == b"tensor"


def test_damaged_later_steps_neither_count_nor_go(store):
    write(store, 30)
    (store.path(30) / "data.bin").write_bytes(b"damag!")
    write(store, 25)
    store.prune(25, keep_last=2)
    assert store.steps() == [20, 25, 30]


def test_cleaning_removes_what_was_never_committed(store):
    (store.path(20) / "COMMIT").unlink()
    store.clean()
    assert sorted(path.name for path in store.folder.iterdir()) == ["step-00000010"]


def test_a_full_disk_leaves_nothing_half_and_the_older_ones_whole(store):
    def full(folder: Path) -> None:
        (folder / "data.bin").write_bytes(b"ten")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        store.write(30, {"step": 30}, full)
    assert not store.path(30).exists()
    assert usable(store) == ([20, 10], [])


CALLS = ("fsync", "replace", "unlink", "rmdir", "mkdir", "open")


@pytest.mark.parametrize("overwrite", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_killed_at_any_call_of_a_save_a_valid_checkpoint_is_left(store, overwrite):
    # Each child process kills itself, really, one system call later than the one before, until one gets through.
    target = 20 if overwrite else 30
    survived, killed = False, 0
    while not survived:
        child = os.fork()
        if child == 0:
            _die_at_call(killed)
            write(store, target)
            store.prune(target, keep_last=2)
            os._exit(0)
        survived = os.waitpid(child, 0)[1] == 0
        killed += not survived
        good, _ = usable(store)
        assert good
        assert good[0] in (10, 20, target)
        assert good[0] >= (10 if overwrite else 20)
        store.clean()
    assert killed > 10
    assert usable(store)[0][0] == target


def _die_at_call(count: int) -> None:
    left = count

    def guarded(call):
        def wrapped(*args, **kwargs):
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return call(*args, **kwargs)

        return wrapped

    for name in CALLS:
        setattr(os, name, guarded(getattr(os, name)))


def test_a_full_disk_is_told_in_the_system_s_words(tmp_path):
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        try:
            tensors.write({"w": torch.zeros(10_000)}, tmp_path)
        except OSError as error:
            os._exit(error.errno or 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == errno.EFBIG
