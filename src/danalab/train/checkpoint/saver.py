"""Asynchronous saving: tensors are copied to host memory, and a thread writes and commits the copy.

    Saver        one checkpoint at a time; training waits only for the copy (and for a save that still runs)
    HostCopies   each rank copies its own shards and a share of replicated tensors: no byte is written twice
    LocalDisk    staging on a node's disk: written there first, then copied to the run folder and compared

A save that fails is reported and retried once from the same copy by the same thread; it fails or succeeds on all
ranks. Committed checkpoints are never touched, and a resumed run never reads the local disk.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from danalab.errors import UserError
from danalab.files import environment_path, naming, sha256
from danalab.optim.gathered import owners
from danalab.optim.tensor_shard import SavedTensor, TensorShard
from danalab.train.checkpoint import tensors as flat
from danalab.train.checkpoint.store import CheckpointStore, run_on_all_ranks
from danalab.train.parallel.world import World

log = logging.getLogger(__name__)
Writer = Callable[[Mapping[str, Any], Path], None]
"""(values of a checkpoint by name, folder): writes this rank's files."""


@dataclass(frozen=True)
class Retention:
    """Which checkpoints are kept when a newer one is committed."""

    keep_last: int = 2
    """Number of newest checkpoints."""
    keep_every: int = 0
    """Multiples of this; 0: none."""
    keep_steps: Mapping[int, str | None] = field(default_factory=dict)
    """These steps, and their names if they have one."""


@dataclass
class _Job:
    step: int
    meta: dict[str, Any]
    before: Callable[[], None]
    blocked: float
    gpu: int | None  # the process's current GPU
    error: Exception | None = None  # why the retry failed
    reported: bool = False


class Saver:
    """Writes a run's checkpoints, one at a time and at the same steps on all ranks, by way of `local_folder`."""

    def __init__(
        self,
        store: CheckpointStore,
        *,
        retention: Retention = Retention(),
        asynchronous: bool = True,
        world: World = World.single(),  # noqa: B008 - frozen
        local_folder: Path | None = None,
        write: Writer | None = None,
    ):
        self.store = store
        self.committed: int | None = None
        """Newest step that this process knows to be committed."""
        self._retention, self._asynchronous = retention, asynchronous
        # Collectives of the thread must not mix with those of training: it has its own group.
        self._world = replace(world, control=world.background)
        self._copies = HostCopies(world)
        self._write = write or self._write_tensors
        if local_folder is not None:
            self._write = LocalDisk(local_folder, self._write, self._world)
        self._thread: threading.Thread | None = None
        self._job: _Job | None = None

    def save(
        self,
        step: int,
        state: Mapping[str, Any],
        meta: dict[str, Any],
        *,
        before: Callable[[], None] = lambda: None,
        wait: bool = False,
    ) -> float:
        """Save a nested `state`; returns the seconds that the caller was blocked.

        UserError: with `wait`, the save failed.

        `meta` (content of meta.json; that of rank 0, and "random" of every rank) must not change afterwards. `before`
        is called in the thread before the commit, to write what the checkpoint depends on; its OSError fails the save.
        `wait`: return when the checkpoint is committed.
        """
        start = time.perf_counter()
        if step == self.committed or (self._job is not None and self._job.step == step):
            if wait:  # it exists, or is being written
                self.drain()
            return time.perf_counter() - start
        self._finish_thread()
        self._report()
        self._copies.take(state)
        gpu = torch.cuda.current_device() if torch.cuda.is_initialized() else None
        self._job = job = _Job(step, meta, before, blocked=time.perf_counter() - start, gpu=gpu)
        self._thread = threading.Thread(target=self._run, args=(job,), name="danalab-checkpoint")
        self._thread.start()
        if wait:
            self.drain()
        elif not self._asynchronous:
            self._finish_thread()
        return time.perf_counter() - start

    def poll(self) -> None:
        """Report a failed background save. Call once per step; costs nothing."""
        if self._thread is None or not self._thread.is_alive():
            self._finish_thread()
            self._report()

    def drain(self) -> None:
        """Wait until the last save is committed; a UserError that names the last good checkpoint if it failed."""
        self._finish_thread()
        job, self._job = self._job, None
        if job is not None and job.error is not None:
            raise UserError(self._complaint(job.step, job.error)) from job.error

    def _report(self) -> None:
        # The job is kept: ranks see its end at different steps, and must act alike when they save or end.
        job = self._job
        if job is not None and job.error is not None and not job.reported:
            job.reported = True
            complaint = self._complaint(job.step, job.error)
            self._warn(f"{complaint}; training continues, and so do later checkpoints")

    def _run(self, job: _Job) -> None:
        start = time.perf_counter()
        try:
            if (
                job.gpu is not None
            ):  # a new thread has GPU 0, where torch's writer would start a context for every rank
                torch.cuda.set_device(job.gpu)
            meta = job.meta
            if self._world.size > 1:
                meta = {**meta, "random_by_rank": self._world.gather(meta.get("random"))}
            try:
                self._commit(job, meta)
            except OSError as error:
                self._warn(f"{self._complaint(job.step, error)}; trying again")
                self._commit(job, meta)
            self.committed = job.step
            seconds = time.perf_counter() - start
            if self._world.is_main:
                log.info(
                    "checkpoint of step %d: %.2f s, training waited %.3f s", job.step, seconds, job.blocked
                )
                self._keep_and_prune(job.step)
        except Exception as error:
            job.error = error

    def _commit(self, job: _Job, meta: dict[str, Any]) -> None:
        run_on_all_ranks(self._world, job.before)
        self.store.write(job.step, meta, lambda folder: self._write(self._copies.values, folder), self._world)

    def _write_tensors(self, values: Mapping[str, Any], folder: Path) -> None:
        flat.write(values, folder, self._world, self._copies.paths)

    def _keep_and_prune(self, step: int) -> None:
        keep = self._retention.keep_steps
        name = keep.get(step)
        if name is not None:
            try:
                self.store.name(step, name)
            except OSError as error:
                log.warning("checkpoint of step %d stays, but could not be named %s: %s", step, name, error)
        self.store.prune(step, self._retention.keep_last, self._retention.keep_every, keep)

    def _finish_thread(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _warn(self, text: str) -> None:
        if self._world.is_main:
            log.warning("%s", text)

    def _complaint(self, step: int, error: Exception) -> str:
        good = "none" if self.committed is None else self.store.path(self.committed)
        where = f"checkpoint of step {step} in {self.store.folder}"
        return f"{where} could not be written: {error}; the last good one is {good}"


class HostCopies:
    """Host copies of named tensors; their memory is reused by the next checkpoint."""

    def __init__(self, world: World):
        self._world = world
        # Reused, because newly allocated memory of this size would have to be paged in each time.
        self._copies: dict[str, Tensor] = {}
        self._specs: dict[str, Any] = {}
        self._shards: dict[str, TensorShard] = {}
        self._plain: dict[str, Any] = {}
        self.paths: flat.Paths = {}
        """Places of the values in the nested state."""

    def take(self, state: Mapping[str, Any]) -> None:
        """Copy this rank's share of `state`; returns when it is copied."""
        values, self.paths = flat.flatten(state)
        self._plain = {name: value for name, value in values.items() if not isinstance(value, SavedTensor)}
        share: dict[str, Any] = share_of(
            {n: v for n, v in values.items() if n not in self._plain}, self._world
        )
        self._copies = {name: self._copies[name] for name in share if name in self._copies}
        self._specs = {name: value._spec for name, value in share.items() if _is_sharded(value)}
        self._shards = {
            name: value.with_values(None) for name, value in share.items() if not isinstance(value, Tensor)
        }
        on_gpu = False
        with torch.no_grad():
            for name, value in share.items():
                source: Tensor = value.to_local() if hasattr(value, "to_local") else value
                copy = self._copies.get(name)
                if copy is None or copy.shape != source.shape or copy.dtype != source.dtype:
                    copy = torch.empty(
                        source.shape, dtype=source.dtype, device="cpu", pin_memory=source.is_cuda
                    )
                    self._copies[name] = copy
                copy.copy_(source, non_blocking=source.is_cuda)
                on_gpu |= source.is_cuda
        if on_gpu:
            torch.cuda.current_stream().synchronize()

    @property
    def values(self) -> dict[str, Any]:
        """The copies, sharded as the originals are, and the plain values."""
        copies: dict[str, Any] = self._plain | {
            name: self._shards[name].with_values(copy) if name in self._shards else copy
            for name, copy in self._copies.items()
        }
        if not self._specs:
            return copies
        from torch.distributed.tensor import DTensor

        # Not DTensor.from_local, which would move the copy to the device of the mesh.
        sharded = {
            name: DTensor(self._copies[name], spec, requires_grad=False) for name, spec in self._specs.items()
        }
        return copies | sharded


def share_of(tensors: Mapping[str, SavedTensor], world: World) -> dict[str, SavedTensor]:
    """The tensors that this rank writes: its shards, and an equal share of replicated tensors; each is in one share."""
    if world.size == 1:
        return dict(tensors)
    alike: dict[int, list[tuple[str, int]]] = {}
    mine = {
        name for name, value in tensors.items() if not isinstance(value, Tensor) and value.values is not None
    }
    others = {name: value for name, value in tensors.items() if isinstance(value, Tensor)}
    for name, value in others.items():
        copies, place = _copies(value, world)
        alike.setdefault(copies, []).append((name, place))
    for copies, entries in alike.items():
        costs = [float(others[name].numel() * others[name].element_size()) for name, _ in entries]
        for (name, place), owner in zip(entries, owners(costs, copies), strict=True):
            if owner == place:
                mine.add(name)
    return {name: value for name, value in tensors.items() if name in mine}


def _copies(value: Tensor, world: World) -> tuple[int, int]:
    """(number of ranks that hold the same part of a tensor, index of this rank among them)."""
    if not _is_sharded(value):
        return world.size, world.rank
    mesh: Any = value.device_mesh  # pyright: ignore[reportAttributeAccessIssue]
    at = mesh.get_coordinate()
    if mesh.size() != world.size or at is None:
        return 1, 0  # copies outside this mesh: torch deduplicates them
    copies, place = 1, 0
    for dim, placement in enumerate(value.placements):  # pyright: ignore[reportAttributeAccessIssue]
        if placement.is_replicate():
            place = place * mesh.size(dim) + at[dim]
            copies *= mesh.size(dim)
    return copies, place


def _is_sharded(value: Any) -> bool:
    return getattr(value, "device_mesh", None) is not None


def local_folder(given: Path | None, run: Path, rank: int) -> Path | None:
    """This rank's folder on the local disk, below `given` or $SLURM_TMPDIR; None without either.

    The folder's name contains a hash of the run's path, so that runs on the same node do not collide. UserError:
    `given` is not a folder that can be written.
    """
    disk = given or environment_path("SLURM_TMPDIR")
    if disk is None:
        return None
    if given is not None and not (given.is_dir() and os.access(given, os.W_OK)):
        raise UserError(f"--local-ckpt-dir {given}: not a folder that can be written on this machine")
    path = str(run.resolve())
    return disk / f"danalab-{run.name}-{hashlib.sha256(path.encode()).hexdigest()[:12]}" / f"rank-{rank}"


class LocalDisk:
    """Writes like `tensors.write` through this rank's `folder`, deleted here; if that fails it warns, then directly."""

    def __init__(self, folder: Path, write: Writer, world: World):
        self.folder = folder
        self._write, self._world = write, world
        self._in_use = True
        shutil.rmtree(folder, ignore_errors=True)  # left by a killed process

    def __call__(self, tensors: Mapping[str, SavedTensor], target: Path) -> None:
        """Write `tensors` into `target`, or raise OSError. Collective."""
        if self._in_use:
            try:
                staged = self._stage(tensors)
            except Exception as error:
                # On all ranks: `run_on_all_ranks` raises on all of them.
                self._in_use = False
                what = "local checkpoint folder %s cannot be used: %s; from now on checkpoints go to the run folder"
                log.warning(what, self.folder.parent, error)
            else:
                try:
                    run_on_all_ranks(self._world, lambda: copy_files(staged, target))
                finally:
                    shutil.rmtree(staged, ignore_errors=True)
                return
        self._write(tensors, target)

    def _stage(self, tensors: Mapping[str, SavedTensor]) -> Path:
        def make() -> Path:
            self.folder.mkdir(parents=True, exist_ok=True)
            return Path(tempfile.mkdtemp(dir=self.folder))

        staged = run_on_all_ranks(self._world, make)[self._world.rank]
        try:
            run_on_all_ranks(self._world, lambda: self._write(tensors, staged))
        except BaseException:
            shutil.rmtree(staged, ignore_errors=True)
            raise
        return staged


def copy_files(source: Path, target: Path) -> None:
    """Copy every file of `source` into `target`; OSError: `target` cannot be written, or a copy differs."""
    for file in sorted(source.iterdir()):
        copy, sent = target / file.name, hashlib.sha256()
        with naming(copy), open(file, "rb") as incoming, open(copy, "wb") as outgoing:
            while block := incoming.read(1 << 22):
                sent.update(block)
                outgoing.write(block)
            outgoing.flush()
            os.fsync(outgoing.fileno())
        if sha256(copy) != sent.hexdigest():
            raise OSError(errno.EIO, f"the copy differs from {file}", str(copy))
