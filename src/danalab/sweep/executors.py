"""Where runs are trained: behind the interface of `concurrent.futures.Executor`.

    executor.submit(Training(job)) -> Future      done when the run has ended; its exception says why it failed

pool, inline        this machine: processes side by side (`pool`), or one run after the other in this process
slurm               array jobs that outlive this process (`danalab.ladder.slurm`)
NAME, FILE.py:NAME  a function of the sweep's folder that returns any executor of this shape: one that a plugin has
                    added to `sweep.EXECUTORS`, or in a file of one's own
"""

import logging
import os
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from danalab.errors import UserError
from danalab.sweep.jobs import DIVERGED, Job
from danalab.train.system import slurm

log = logging.getLogger(__name__)

POLL_SECONDS = 0.25


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Resources and commands of the arrays."""

    resources: slurm.Resources = field(default_factory=slurm.Resources)
    setup: Sequence[str] = ()
    """Shell commands before the run."""
    at_once: int | None = None
    """Maximum number of runs at a time; None: no limit."""
    wait: bool = False
    """Wait until no run is queued or running."""
    poll_seconds: float = 60.0
    """Interval of queries to the queue while waiting [s]."""
    command: Sequence[str] = slurm.COMMAND
    """Command that starts `danalab` there; default this installation."""


@dataclass
class Training:
    """The unit of work: train the run of a folder until it is done. It can be pickled, and called on any machine that
    sees the folder."""

    job: Job
    here: bool = False
    """In this process; otherwise in one of its own, with its output in the run's log.txt."""
    workdir: str = field(default_factory=os.getcwd)

    def __call__(self) -> None:
        """Raises UserError: the run failed; says why."""
        while self.job.is_taken():  # by another process
            time.sleep(1)
        if self.job.is_finished():
            return
        if self.job.has_diverged():
            raise UserError(DIVERGED)
        if self.here:
            self._train_here()
            return
        self.job.folder.mkdir(parents=True, exist_ok=True)
        with (self.job.folder / "log.txt").open("ab") as output:
            where = {"cwd": self.workdir, "stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
            code = subprocess.call(self.job.command(), **where)
        if code:
            raise UserError(end_of_log(self.job, code))

    def _train_here(self) -> None:
        from danalab.sweep.grid import Cell
        from danalab.train.job import run_training

        outcome = run_training(Cell(self.job.folder.name, self.job.settings).config(self.job.folder))
        if outcome.status == "interrupted":
            raise KeyboardInterrupt
        if outcome.status != "finished":
            raise UserError(f"ended as {outcome.status} at step {outcome.summary.get('step')}")


def end_of_log(job: Job, code: int) -> str:
    """Why a run failed: its exit code and the last line of its output."""
    file = job.folder / "log.txt"
    lines = file.read_text(encoding="utf-8", errors="replace").strip().splitlines() if file.is_file() else []
    return f"ended with exit code {code}: {lines[-1] if lines else 'no output'}"


class PolledFuture(Future[Any]):
    """A future of an executor that has no thread: waiting for the result does the executor's work."""

    def __init__(self, executor: "PolledExecutor"):
        super().__init__()
        self._executor = executor

    def result(self, timeout: float | None = None) -> Any:
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.done() and (deadline is None or time.monotonic() < deadline):
            self._executor.poll()
            time.sleep(0 if self.done() else POLL_SECONDS)
        return super().result(0)


class PolledExecutor(Executor):
    """An executor whose work is done by `poll`, in the thread that waits for it."""

    poll_seconds = POLL_SECONDS
    waits = True
    """False: what is submitted goes on without this process, which need not wait for it."""

    def __init__(self) -> None:
        self.units: list[tuple[Any, PolledFuture]] = []
        """What was submitted and has not ended."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **settings: Any) -> PolledFuture:
        unit = partial(fn, *args, **settings) if args or settings else fn
        self.units.append((unit, PolledFuture(self)))
        return self.units[-1][1]

    def poll(self) -> None:
        """Start and end what can be."""
        raise NotImplementedError


class InlineExecutor(PolledExecutor):
    """One unit after the other, in this process."""

    poll_seconds = 0.0

    def poll(self) -> None:
        if not self.units:
            return
        unit, future = self.units.pop(0)
        try:
            future.set_result(unit())
        except UserError as error:
            future.set_exception(error)
        except Exception as error:  # one run's crash never stops the others
            log.exception("%s crashed", unit.job.folder.name if isinstance(unit, Training) else "a run")
            future.set_exception(error)


def done_of(executor: Executor, futures: Collection[Future[Any]], *, hurry: bool = False) -> set[Future[Any]]:
    """Those that have ended; waits a little for one, unless in a `hurry`."""
    if isinstance(executor, PolledExecutor):
        executor.poll()
    seconds = 0.0 if hurry else getattr(executor, "poll_seconds", POLL_SECONDS)
    return wait(futures, timeout=seconds, return_when=FIRST_COMPLETED).done if futures else set()


def as_completed(executor: Executor, futures: Iterable[Future[Any]]) -> Iterator[Future[Any]]:
    """The futures of an executor as they end, as of `concurrent.futures`, which polls none."""
    waiting = set(futures)
    while waiting:
        done = done_of(executor, waiting)
        waiting -= done
        yield from done


class Runs:
    """Runs at an executor: started in any number at a time, and known as they end."""

    def __init__(self, executor: Executor):
        self.executor = executor
        self.open: dict[Future[Any], Job] = {}
        self._ended: list[tuple[Job, str | None]] = []

    def start(self, jobs: Sequence[Job], title: str) -> None:
        """Submit those that are not finished and have not diverged."""
        wanted = []
        for job in {job.folder: job for job in jobs}.values():
            if job.is_finished():
                self._ended.append((job, None))
            elif job.has_diverged():
                self._ended.append((job, DIVERGED))
            else:
                wanted.append(job)
        if wanted:
            say = getattr(self.executor, "say", log.info)
            say(f"{title}: {len(wanted)} of {len(jobs)} runs to train")
        for job in wanted:
            self.open[self.executor.submit(Training(job, here=isinstance(self.executor, InlineExecutor)))] = job

    def ended(self) -> list[tuple[Job, str | None]]:
        """Runs that have ended since the last call, with the reason if they failed; waits for one. Empty: nothing is
        left that this process waits for."""
        while True:
            done = done_of(self.executor, self.open, hurry=bool(self._ended))
            self._ended += [(job, _reason(each)) for each, job in self.open.items() if each in done]
            for each in done:
                del self.open[each]
            if self._ended or not (self.open and getattr(self.executor, "waits", True)):
                ended, self._ended = self._ended, []
                return ended


def _reason(future: Future[Any]) -> str | None:
    error = future.exception() if not future.cancelled() else UserError("it was cancelled")
    if error is None or isinstance(error, UserError):
        return None if error is None else str(error)
    if not isinstance(error, Exception):
        raise error
    return f"{type(error).__name__}: {error}"
