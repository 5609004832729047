"""Saving beside training: tensors are copied to host memory, and a thread writes and commits the copy.

Training waits for the copy only (and for a previous save that still runs). A save that a disk refuses is told and tried
once more from the same copy, at once and by the same thread: with several ranks it fails or succeeds for all of them,
and their threads meet again. It never touches what was committed before.
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
    """Which checkpoints stay when a newer one is committed."""

    keep_last: int = 2
    """The newest."""
    keep_every: int = 0
    """Multiples of this; 0: none."""
    keep_steps: Mapping[int, str | None] = field(default_factory=dict)
    """These steps, with a name for each that has one."""


@dataclass
class _Job:
    step: int
    meta: dict[str, Any]
    before: Callable[[], None]
    held_up: float
    error: Exception | None = None
    """Why it failed for good."""
    reported: bool = False


class Saver:
    """Writes the checkpoints of one run, at most one at a time."""

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
        world: all ranks make a saver, and call it at the same steps.
        local_folder: this rank's folder on a fast disk, by way of which the tensors go.
        write: `write(tensors, folder)` puts the tensors on disk; default `tensors.write`.
        """
        self.store = store
        self.committed: int | None = None
        """Newest step that is safe, by this process's knowledge."""
        self._retention = retention
        self._asynchronous = asynchronous
        # Collectives of the thread must not meet those of training: it has a group of its own.
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
        """Save `tensors` as they are now; returns the seconds that the caller was held up.

        Args:
            meta: goes to meta.json; rank 0's, but for "random", which is kept of every rank. Not to be changed.
            before: what has to be on the disk before this is committed; an OSError of it fails the save. Called beside
                training.
            wait: return when it is committed.
        Raises:
            UserError: with `wait`, the save failed.
        """
        start = time.perf_counter()
        if step == self.committed or (self._job is not None and self._job.step == step):
            if wait:  # it is there, or on its way
                self.drain()
            return time.perf_counter() - start
        self._finish_thread()
        self._report()
        self._copies.take(tensors)
        self._job = job = _Job(step, meta, before, held_up=time.perf_counter() - start)
        self._thread = threading.Thread(target=self._run, args=(job,), name="danalab-checkpoint")
        self._thread.start()
        if wait:
            self.drain()
        elif not self._asynchronous:
            self._finish_thread()
        return time.perf_counter() - start

    def poll(self) -> None:
        """Look after the background save: say that it failed. Call once a step; costs nothing."""
        if not self._is_running():
            self._finish_thread()
            self._report()

    def drain(self) -> None:
        """Wait until the last save is committed.

        Raises:
            UserError: it failed; names the last good checkpoint.
        """
        self._finish_thread()
        job, self._job = self._job, None
        if job is not None and job.error is not None:
            raise UserError(self._complaint(job.step, job.error)) from job.error

    def _report(self) -> None:
        # The job stays: ranks hear of its end at different steps, and must do the same when they save or end.
        job = self._job
        if job is not None and job.error is not None and not job.reported:
            job.reported = True
            complaint = self._complaint(job.step, job.error)
            self._warn(f"{complaint}; training goes on, the next checkpoint will be tried in its turn")

    def _run(self, job: _Job) -> None:
        start = time.perf_counter()
        try:
            meta = self._meta_of_all(job.meta)
            try:
                self._commit(job, meta)
            except OSError as error:
                self._warn(f"{self._complaint(job.step, error)}; trying again")
                self._commit(job, meta)
            self.committed = job.step
            seconds = time.perf_counter() - start
            if self._world.is_main:
                log.info(
                    "checkpoint of step %d: %.2f s, training was held up for %.3f s", job.step, seconds, job.held_up
                )
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
            f"the last good one is {self.store.path(self.committed)}" if self.committed is not None else "none is safe"
        )
        return f"checkpoint of step {step} in {self.store.folder} could not be written: {error}; {good}"
