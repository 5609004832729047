"""Saving from several ranks: shared work, one commit, and failures that are everyone's."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from danalab.errors import UserError
from danalab.train.checkpoint import tensors as flat
from danalab.train.checkpoint.saver import Saver, local_folder
from danalab.train.checkpoint.store import CheckpointStore, verify
from danalab.train.parallel.world import RankLayout, World, join
from distributed.ranks import RankFailed, run_ranks


def ddp() -> World:
    return join(RankLayout("ddp"), "cpu")


def tensors(value: float) -> dict[str, Tensor]:
    return {f"w{n}": torch.full((1000,), value) for n in range(4)}


def loaded(store: CheckpointStore, step: int) -> float:
    target = {name: torch.zeros(1000) for name in tensors(0)}
    flat._load(target, store.path(step))
    values = torch.cat(list(target.values())).unique()
    assert len(values) == 1
    return float(values)


def share_the_work(rank: int, size: int, folder: str) -> list[str]:
    saver = Saver(CheckpointStore(folder), world=ddp())
    saver.save(1, tensors(3.0), {"random": rank}, wait=True)
    return sorted(saver._copies)


def test_replicas_share_the_work_and_nothing_is_written_twice(tmp_path):
    found = run_ranks(share_the_work, 2, str(tmp_path))
    assert found == [sorted(tensors(0))] * 2
    store = CheckpointStore(tmp_path)
    verify(store.path(1))
    sizes = [file.stat().st_size for file in store.path(1).glob("*.distcp")]
    assert len(sizes) == 2
    assert sum(sizes) < 1.5 * 4 * 4000
    assert loaded(store, 1) == 3.0


def save_while_training(rank: int, size: int, folder: str) -> None:
    saver, values = Saver(CheckpointStore(folder), world=ddp()), tensors(0.0)
    for step in range(1, 31):
        for value in values.values():
            value += 1
            dist.all_reduce(
                value, op=dist.ReduceOp.AVG if dist.get_backend() == "nccl" else dist.ReduceOp.MAX
            )
        if step % 10 == 0:
            saver.save(step, values, {})
    saver.drain()


def save_with_little_room(rank: int, size: int, folder: str) -> str:
    saver = Saver(CheckpointStore(folder), world=ddp())
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    with pytest.raises(UserError) as caught:
        saver.save(1, tensors(3.0), {}, wait=True)
    return str(caught.value)


def test_a_disk_that_is_full_for_one_rank_is_told_in_the_system_s_words(tmp_path):
    found = run_ranks(save_with_little_room, 2, str(tmp_path))
    assert [("File too large" in text, "(rank 1)" in text) for text in found] == [(True, True)] * 2
    assert CheckpointStore(tmp_path).steps() == []


def test_saving_beside_training_keeps_its_messages_apart(tmp_path):
    run_ranks(save_while_training, 2, str(tmp_path))
    store = CheckpointStore(tmp_path)
    assert [loaded(store, step) for step in store.steps()] == [20.0, 30.0]


class Failing:
    """The real writer, on a disk that is full for one rank at some calls."""

    def __init__(self, world: World, rank: int, calls: set[int]):
        self.world, self.rank, self.calls, self.count = world, rank, calls, 0

    def __call__(self, values: Mapping[str, Tensor], folder: Path) -> None:
        self.count += 1
        if self.count in self.calls and self.world.rank == self.rank:
            raise OSError(errno.ENOSPC, "No space left on device")
        (folder / f"__{self.world.rank}_0.distcp").write_bytes(b"tensors")


def fail_once(rank: int, size: int, folder: str) -> tuple[list[int], list[int], list[int]]:
    world = ddp()
    saver = Saver(CheckpointStore(folder), world=world, write=Failing(world, 1, {2, 4, 5, 7, 8}))
    saver.save(1, tensors(1.0), {}, wait=True)
    saver.save(2, tensors(2.0), {})
    saver._finish()
    world.agree(0)
    after_second_try = saver.store.steps()
    saver.save(3, tensors(3.0), {})
    saver._finish()
    saver.save(4, tensors(4.0), {}, wait=True)
    world.agree(0)
    after_next = saver.store.steps()
    with pytest.raises(
        UserError, match=r"No space left on device \(rank 1\).*the last good one is .*step-00000004"
    ):
        saver.save(5, tensors(5.0), {}, wait=True)
    world.agree(0)
    return after_second_try, after_next, saver.store.steps()


def test_what_one_rank_cannot_write_is_committed_by_none_until_a_second_try_or_the_next_one(tmp_path):
    assert run_ranks(fail_once, 2, str(tmp_path)) == [([1, 2], [2, 4], [2, 4])] * 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000004"]


def die(rank: int, size: int, folder: str) -> None:
    world = ddp()
    saver = Saver(CheckpointStore(folder), world=world)
    saver.save(1, tensors(1.0), {}, wait=True)
    world.agree(0)
    write = flat.dcp.FileSystemWriter.write_data

    def killed(*args: Any, **kwargs: Any) -> Any:
        if rank == 1:
            os._exit(1)
        return write(*args, **kwargs)

    flat.dcp.FileSystemWriter.write_data = killed  # type: ignore[method-assign]
    saver.save(2, tensors(2.0), {}, wait=True)


def test_a_rank_that_dies_while_saving_leaves_nothing_half(tmp_path):
    with pytest.raises(RankFailed):
        run_ranks(die, 2, str(tmp_path))
    assert CheckpointStore(tmp_path).steps() == [1]


def save_by_local_disk(rank: int, size: int, folder: str, disk: str) -> list[str]:
    world = ddp()
    own = local_folder(Path(disk), Path(folder), rank)
    saver = Saver(CheckpointStore(folder), world=world, local_folder=own)
    saver.save(1, tensors(1.0), {}, wait=True)
    assert own is not None
    if rank == 1:
        own.rmdir()
        own.write_text("no folder any more")
    saver.save(2, tensors(2.0), {}, wait=True)
    saver.save(3, tensors(3.0), {}, wait=True)
    return [str(own), str(saver._local)]


def test_local_disks_are_each_rank_s_own_and_one_that_fails_is_given_up_by_all(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    found = run_ranks(save_by_local_disk, 2, str(tmp_path / "run"), str(disk))
    assert found[0][0] != found[1][0]
    assert [used for _, used in found] == ["None", "None"]
    store = CheckpointStore(tmp_path / "run")
    assert [loaded(store, step) for step in store.steps()] == [2.0, 3.0]
