"""Saving beside training: tensors are copied to host memory, and a thread writes and commits the copy.

Training waits for the copy only (and for a previous save that still runs). A save that fails is reported at the next
step and tried once more from the same copy; it never touches what was committed before.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from danalab.errors import UserError
from danalab.train.checkpoint import tensors as flat
from danalab.train.checkpoint.store import CheckpointStore

log = logging.getLogger(__name__)


@dataclass
class _Job:
    step: int
    meta: dict[str, Any]
    retried: bool = False
    error: Exception | None = None
    held_up: float = 0.0


class Saver:
    """Writes the checkpoints of one run, at most one at a time."""

    def __init__(
        self,
        store: CheckpointStore,
        *,
        keep_last: int = 2,
        keep_every: int = 0,
        asynchronous: bool = True,
        write: Callable[[Mapping[str, Tensor], Path], None] = flat.write,
    ):
        """`write(tensors, folder)` puts the tensors on disk; see `tensors.write`."""
        self.store = store
        self.committed: int | None = None
        """Newest step that is safe, by this process's knowledge."""
        self._keep = (keep_last, keep_every)
        self._asynchronous = asynchronous
        self._write = write
        self._staged: dict[str, Tensor] = {}
        self._thread: threading.Thread | None = None
        self._job: _Job | None = None

    def save(self, step: int, tensors: Mapping[str, Tensor], meta: dict[str, Any], *, wait: bool = False) -> float:
        """Save `tensors` as they are now; returns the seconds that the caller was held up.

        Args:
            wait: return when it is committed.
        Raises:
            UserError: with `wait`, the save failed twice.
        """
        start = time.perf_counter()
        if step == self.committed or (self._job is not None and self._job.step == step):
            if wait:  # it is there, or on its way
                self.drain()
            return time.perf_counter() - start
        self._finish_thread()
        if self._job is not None and self._job.error is not None:
            log.warning("%s; a newer one is written now", self._complaint(self._job))
        self._stage(tensors)
        self._job = _Job(step, meta, held_up=time.perf_counter() - start)
        self._start()
        if wait:
            self.drain()
        elif not self._asynchronous:
            self._finish_thread()
        return time.perf_counter() - start

    def poll(self) -> None:
        """Look after the background save: report a failure and try again. Call once a step; costs nothing."""
        job = self._job
        if job is None or self._is_running():
            return
        self._finish_thread()
        if job.error is None:
            self._job = None
        elif not job.retried:
            log.warning("%s; trying again", self._complaint(job))
            self._job = _Job(job.step, job.meta, retried=True, held_up=job.held_up)
            self._start()
        else:
            log.warning("%s; training goes on, the next checkpoint will be tried in its turn", self._complaint(job))
            self._job = None

    def drain(self) -> None:
        """Wait until the last save is committed.

        Raises:
            UserError: it failed twice; names the last good checkpoint.
        """
        while self._job is not None:
            self._finish_thread()
            job = self._job
            if job.error is not None and job.retried:
                self._job = None
                raise UserError(self._complaint(job)) from job.error
            self.poll()

    def _stage(self, tensors: Mapping[str, Tensor]) -> None:
        # The copies are kept from save to save: fresh memory of this size would be paged in anew each time.
        self._staged = {name: self._staged[name] for name in tensors if name in self._staged}
        with torch.no_grad():
            for name, value in tensors.items():
                copy = self._staged.get(name)
                if copy is None or copy.shape != value.shape or copy.dtype != value.dtype:
                    copy = torch.empty(value.shape, dtype=value.dtype, device="cpu", pin_memory=value.is_cuda)
                    self._staged[name] = copy
                copy.copy_(value, non_blocking=value.is_cuda)
        if any(value.is_cuda for value in tensors.values()):
            torch.cuda.current_stream().synchronize()

    def _start(self) -> None:
        job = self._job
        assert job is not None
        self._thread = threading.Thread(target=self._run, args=(job,), name="danalab-checkpoint")
        self._thread.start()

    def _run(self, job: _Job) -> None:
        start = time.perf_counter()
        try:
            self.store.write(job.step, job.meta, lambda folder: self._write(self._staged, folder))
            self.committed = job.step
            seconds = time.perf_counter() - start
            log.info("checkpoint of step %d: %.2f s, training was held up for %.3f s", job.step, seconds, job.held_up)
            self.store.prune(job.step, *self._keep)
        except Exception as error:
            job.error = error

    def _is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _finish_thread(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _complaint(self, job: _Job) -> str:
        good = (
            f"the last good one is {self.store.path(self.committed)}" if self.committed is not None else "none is safe"
        )
        return f"checkpoint of step {job.step} in {self.store.folder} could not be written: {job.error}; {good}"
