"""Asynchronous saving: tensors are copied to host memory, and a thread writes and commits the copy.

Training waits only for the copy (and for a previous save that still runs). A save that fails is reported and retried
once from the same copy by the same thread; it fails or succeeds on all ranks. Committed checkpoints are never touched.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from danalab.errors import UserError
from danalab.optim.distributed.shards import SavedTensor
from danalab.train.checkpoint import tensors as flat
from danalab.train.checkpoint.all_ranks import run_on_all_ranks
from danalab.train.checkpoint.host_copies import HostCopies
from danalab.train.checkpoint.local_disk import LocalDisk
from danalab.train.checkpoint.store import CheckpointStore
from danalab.train.parallel.world import World

log = logging.getLogger(__name__)


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
    gpu: int | None
    """The process's current GPU."""
    error: Exception | None = None
    """Why the retry failed."""
    reported: bool = False


class Saver:
    """Writes the checkpoints of a run, one at a time."""

    def __init__(
        self,
        store: CheckpointStore,
        *,
        retention: Retention = Retention(),
        asynchronous: bool = True,
        world: World = World.single(),  # noqa: B008 - frozen
        local_folder: Path | None = None,
        write: Callable[[Mapping[str, SavedTensor], Path], None] | None = None,
    ):
        """Args:
        world: all ranks construct a saver and save at the same steps.
        local_folder: this rank's folder on a fast disk, where tensors are staged.
        write: `write(tensors, folder)` writes the tensors; default `tensors.write`.
        """
        self.store = store
        self.committed: int | None = None
        """Newest step that this process knows to be committed."""
        self._retention = retention
        self._asynchronous = asynchronous
        # Collectives of the thread must not mix with those of training: it has its own group.
        self._world = replace(world, control=world.background)
        self._write = write or partial(flat.write, world=self._world)
        if local_folder is not None:
            self._write = LocalDisk(local_folder, self._write, self._world)
        self._copies = HostCopies(world)
        self._thread: threading.Thread | None = None
        self._job: _Job | None = None

    def save(
        self,
        step: int,
        tensors: Mapping[str, SavedTensor],
        meta: dict[str, Any],
        *,
        before: Callable[[], None] = lambda: None,
        wait: bool = False,
    ) -> float:
        """Save `tensors`; returns the seconds that the caller was blocked.

        Args:
            meta: content of meta.json; that of rank 0, and "random" of every rank. Must not be changed afterwards.
            before: called in the thread before the commit, to write what the checkpoint depends on; its OSError fails
                the save.
            wait: return when the checkpoint is committed.
        Raises:
            UserError: with `wait`, the save failed.
        """
        start = time.perf_counter()
        if step == self.committed or (self._job is not None and self._job.step == step):
            if wait:  # it exists, or is being written
                self.drain()
            return time.perf_counter() - start
        self._finish_thread()
        self._report()
        self._copies.take(tensors)
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
        """Report a failed background save. Call once a step; costs nothing."""
        if not self._is_running():
            self._finish_thread()
            self._report()

    def drain(self) -> None:
        """Wait until the last save is committed.

        Raises:
            UserError: it failed; the message names the last good checkpoint.
        """
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
            if job.gpu is not None:  # a new thread has GPU 0, where torch's writer would start a context for every rank
                torch.cuda.set_device(job.gpu)
            meta = self._meta_of_all(job.meta)
            try:
                self._commit(job, meta)
            except OSError as error:
                self._warn(f"{self._complaint(job.step, error)}; trying again")
                self._commit(job, meta)
            self.committed = job.step
            seconds = time.perf_counter() - start
            if self._world.is_main:
                log.info("checkpoint of step %d: %.2f s, training waited %.3f s", job.step, seconds, job.blocked)
                self._keep_and_prune(job.step)
        except Exception as error:
            job.error = error

    def _commit(self, job: _Job, meta: dict[str, Any]) -> None:
        run_on_all_ranks(self._world, job.before)
        self.store.write(job.step, meta, lambda folder: self._write(self._copies.tensors, folder), self._world)

    def _meta_of_all(self, meta: dict[str, Any]) -> dict[str, Any]:
        if self._world.size == 1:
            return meta
        return {**meta, "random_by_rank": self._world.gather(meta.get("random"))}

    def _keep_and_prune(self, step: int) -> None:
        keep = self._retention.keep_steps
        name = keep.get(step)
        if name is not None:
            try:
                self.store.name(step, name)
            except OSError as error:
                log.warning("checkpoint of step %d stays, but could not be named %s: %s", step, name, error)
        self.store.prune(step, self._retention.keep_last, self._retention.keep_every, keep)

    def _is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _finish_thread(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _warn(self, text: str) -> None:
        if self._world.is_main:
            log.warning("%s", text)

    def _complaint(self, step: int, error: Exception) -> str:
        good = (
            f"the last good one is {self.store.path(self.committed)}" if self.committed is not None else "there is none"
        )
        return f"checkpoint of step {step} in {self.store.folder} could not be written: {error}; {good}"
