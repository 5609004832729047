"""Asynchronous saving: tensors are copied to host memory, and a thread writes and commits the copy.

One checkpoint at a time; training waits only for the copy (and for a save that still runs). With a folder on the local
disk, files are written there first, then copied to the run folder and compared.

A save that fails is reported and retried once from the same copy by the same thread; it fails or succeeds on all
ranks. Committed checkpoints are never touched, and a resumed run never reads the local disk.
"""

import errno
import hashlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from danalab.errors import UserError
from danalab.files import environment_path, naming, sha256
from danalab.optim.tensor_shard import TensorShard
from danalab.train.checkpoint import tensors
from danalab.train.checkpoint.store import CheckpointStore, run_on_all_ranks
from danalab.train.parallel.world import World

log = logging.getLogger(__name__)
Writer = Callable[[Mapping[str, Any], Path], None]
"""(nested state in host memory, folder): writes this rank's files. Collective."""


class Saver:
    """Writes a run's checkpoints, one at a time and at the same steps on all ranks, by way of `local_folder`.

    Kept are the `keep_last` newest, and multiples of `keep_every`.
    """

    def __init__(
        self,
        store: CheckpointStore,
        *,
        keep_last: int = 2,
        keep_every: int = 0,
        asynchronous: bool = True,
        world: World = World(),  # noqa: B008 - frozen
        local_folder: Path | None = None,
        write: Writer | None = None,
    ):
        self.store = store
        self.committed: int | None = None
        """Newest step that this process knows to be committed."""
        self._keep_last, self._keep_every = keep_last, keep_every
        self._asynchronous = asynchronous
        # Collectives of the thread must not mix with those of training: it has its own group.
        self._world = replace(world, control=world.background)
        self._writer = write or partial(tensors.write, world=self._world)
        self._local = None if local_folder is None else local_folder / "staged"
        if self._local is not None:
            shutil.rmtree(self._local, ignore_errors=True)  # left by a killed process
        # Reused, because newly allocated memory of this size would have to be paged in each time.
        self._copies: dict[str, Tensor] = {}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="danalab-checkpoint")
        # The last job is kept: ranks see its end at different steps, and must act alike when they save or end.
        self._job: Future[None] | None = None
        self._step: int | None = None

    def save(
        self,
        step: int,
        state: Mapping[str, Any],
        meta: dict[str, Any],
        *,
        before: Callable[[], None] = lambda: None,
        best: bool = False,
        wait: bool = False,
    ) -> float:
        """Save a nested `state`, as the `best` too; returns the seconds that the caller was blocked.

        UserError: with `wait`, the save failed.

        `meta` (content of meta.json; that of rank 0, and "random" of every rank) must not change afterwards. `before`
        is called in the thread before the commit, to write what the checkpoint depends on; its OSError fails the save.
        `wait`: return when the checkpoint is committed.
        """
        start = time.perf_counter()
        if step not in (self.committed, self._step):  # else it exists, or is being written
            self._finish()
            copied = self._copied(state)
            gpu = torch.cuda.current_device() if torch.cuda.is_initialized() else None
            self._step = step
            blocked = time.perf_counter() - start
            self._job = self._pool.submit(self._run, step, copied, meta, before, best, blocked, gpu)
        elif best and step == self.committed and self._world.is_main:
            self.store.name_best(step)
        if wait:
            self.drain()
        elif not self._asynchronous:
            self._finish()
        return time.perf_counter() - start

    def drain(self) -> None:
        """Wait until the last save is committed; a UserError that names the last good checkpoint if it failed."""
        job, step, self._job, self._step = self._job, self._step, None, None
        if job is not None and (error := job.exception()) is not None:
            raise UserError(self._complaint(step, error)) from error

    def _finish(self) -> None:
        if self._job is not None:
            wait([self._job])

    def _copied(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """`state` in host memory, sharded as it is."""
        flat, paths = tensors.flatten(state)
        kept, self._copies, copied, on_gpu = self._copies, {}, dict(flat), False
        with torch.no_grad():
            for name, value in flat.items():
                source = local_of(value)
                if source is None:
                    continue
                copy = kept.get(name)
                if copy is None or copy.shape != source.shape or copy.dtype != source.dtype:
                    copy = torch.empty(source.shape, dtype=source.dtype, pin_memory=source.is_cuda)
                self._copies[name] = copy.copy_(source, non_blocking=source.is_cuda)
                copied[name] = with_local(value, copy)
                on_gpu |= source.is_cuda
        if on_gpu:
            torch.cuda.current_stream().synchronize()
        return tensors.unflatten(copied, paths)

    def _run(
        self,
        step: int,
        state: dict[str, Any],
        meta: dict[str, Any],
        before: Callable[[], None],
        best: bool,
        blocked: float,
        gpu: int | None,
    ) -> None:
        start = time.perf_counter()
        if (
            gpu is not None
        ):  # a new thread has GPU 0, where torch's writer would start a context for every rank
            torch.cuda.set_device(gpu)
        if self._world.size > 1:
            meta = {**meta, "random_by_rank": self._world.gather(meta.get("random"))}
        for last in (False, True):
            try:
                run_on_all_ranks(self._world, before)
                self.store.write(step, meta, partial(self._write, state), self._world)
                break
            except OSError as error:
                if self._world.is_main:
                    what = "training continues without this checkpoint" if last else "trying again"
                    log.warning("%s; %s", self._complaint(step, error), what)
                if last:
                    raise
        self.committed = step
        if self._world.is_main:
            seconds = time.perf_counter() - start
            waited = f"training waited {blocked:.3f} s until its state was copied"
            log.info("checkpoint of step %d written in %.2f s; %s", step, seconds, waited)
            if best:
                self.store.name_best(step)
            self.store.prune(step, self._keep_last, self._keep_every)

    def _write(self, state: Mapping[str, Any], target: Path) -> None:
        """Write this rank's files into `target`, by way of the local disk while that can be used. Collective."""
        world, staged = self._world, self._local
        if staged is not None:
            try:
                run_on_all_ranks(world, lambda: staged.mkdir(parents=True))
                run_on_all_ranks(world, lambda: self._writer(state, staged))
            except Exception as error:  # on all ranks
                self._local = None
                what = "local checkpoint folder %s cannot be used: %s; from now on checkpoints go to the run folder"
                log.warning(what, staged.parent, error)
            else:
                run_on_all_ranks(world, lambda: copy_files(staged, target))
                return
            finally:
                shutil.rmtree(staged, ignore_errors=True)
        self._writer(state, target)

    def _complaint(self, step: int | None, error: BaseException) -> str:
        good = "none" if self.committed is None else self.store.path(self.committed)
        where = f"checkpoint of step {step} in {self.store.folder}"
        return f"{where} could not be written: {error}; the last good one is {good}"


def local_of(value: Any) -> Tensor | None:
    """This rank's part of a tensor; None where it has none, or for a plain value."""
    if isinstance(value, TensorShard):
        return value.values
    return value.to_local() if hasattr(value, "to_local") else value if isinstance(value, Tensor) else None


def with_local(value: Any, part: Tensor) -> Any:
    """`part` in place of this rank's part of a tensor."""
    if isinstance(value, TensorShard):
        return value.with_values(part)
    if not hasattr(value, "device_mesh"):
        return part
    from torch.distributed.tensor import DTensor

    # Not DTensor.from_local, which would move the copy to the device of the mesh.
    return DTensor(part, value._spec, requires_grad=False)


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
    digest = hashlib.sha256(str(run.resolve()).encode()).hexdigest()
    return disk / f"danalab-{run.name}-{digest[:12]}" / f"rank-{rank}"


def copy_files(source: Path, target: Path) -> None:
    """Copy every file of `source` into `target`; OSError: `target` cannot be written, or a copy differs."""
    for file in sorted(source.iterdir()):
        copy = target / file.name
        with naming(copy):
            shutil.copyfile(file, copy)
        if sha256(copy) != sha256(file):
            raise OSError(errno.EIO, f"the copy differs from {file}", str(copy))
