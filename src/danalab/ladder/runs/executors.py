"""Where runs are trained: behind the interface of `concurrent.futures.Executor`.

    executor.submit(Training(job)) -> Future      done when the run has ended; its exception says why it failed

pool, inline        this machine: processes side by side (`pool`), or one run after the other in this process
slurm               array jobs that outlive this process (`cluster`)
submitit            the library submitit: jobs of SLURM, or processes where there is none
NAME, FILE.py:NAME  a function of the sweep's folder that returns any executor of this shape: one that a plugin has
                    added to `sweep.EXECUTORS`, or in a file of one's own
"""

import logging
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from danalab.errors import UserError
from danalab.ladder.runs.jobs import DIVERGED, Job, is_taken
from danalab.train.run.folder import RunFolder
from danalab.train.system.signals import REQUEUE

log = logging.getLogger(__name__)

POLL_SECONDS = 0.25
PREEMPTED = (REQUEUE, 143, -15)
"""Exit codes of a run that was told to stop: after its checkpoint, and before it could write one."""
FRUITLESS = 3  # attempts in a row without a step after which a run is not started again


@dataclass
class Training:
    """The unit of work: train the run of a folder until it is done. It can be pickled, and called on any machine that
    sees the folder."""

    job: Job
    here: bool = False
    """In this process; otherwise in one of its own, with its output in the run's log.txt."""
    resumes: bool = False
    """A run that was told to stop is started again."""
    workdir: str = field(default_factory=os.getcwd)
    step: int | None = None
    """Step at the end of the last attempt."""
    fruitless: int = 0
    """Attempts in a row that ended at this step."""

    def __call__(self) -> None:
        """Raises UserError: the run failed; says why."""
        while is_taken(self.job):  # by another process
            time.sleep(1)
        while not self.job.is_finished():
            if self.job.has_diverged():
                raise UserError(DIVERGED)
            code = self._train_here() if self.here else self._run()
            if self.resumes and code in PREEMPTED:
                self.note_progress()
            elif code:
                raise UserError(end_of_log(self.job, code))
            else:
                return

    def note_progress(self) -> None:
        """After an attempt. Raises UserError if three in a row made no step."""
        step = max([self.job.progress()[0], *RunFolder(self.job.folder).store.steps()])
        self.fruitless = self.fruitless + 1 if step == self.step else 0
        self.step = step
        if self.fruitless >= FRUITLESS:
            raise UserError(f"{FRUITLESS} attempts in a row ended at step {step}: not started again")

    def _run(self) -> int:
        self.job.folder.mkdir(parents=True, exist_ok=True)
        with (self.job.folder / "log.txt").open("ab") as output:
            process = subprocess.Popen(
                self.job.command(), cwd=self.workdir, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=self.resumes,  # signals to this process's group are this process's to pass on
            )  # fmt: skip
            self._started(process)
            return process.wait()

    def _started(self, process: "subprocess.Popen[bytes]") -> None:
        """For executors that pass signals on."""

    def _train_here(self) -> int:
        from danalab.ladder.runs.grid import Cell
        from danalab.train.job import run_training

        outcome = run_training(Cell(self.job.folder.name, self.job.settings).config(self.job.folder))
        if outcome.status == "interrupted":
            raise KeyboardInterrupt
        if outcome.status != "finished":
            raise UserError(f"ended as {outcome.status} at step {outcome.summary.get('step')}")
        return 0


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

    def say(self, words: str) -> None:
        log.info("%s", words)


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
        batch = getattr(self.executor, "batch", nullcontext)  # as submitit has it: what belongs to one array
        with batch():
            for job in wanted:
                self.open[self.executor.submit(Training(job, here=isinstance(self.executor, InlineExecutor)))] = job

    def ended(self) -> list[tuple[Job, str | None]]:
        """Runs that have ended since the last call, with the reason if they failed; waits for one. Empty: nothing is
        left that this process waits for."""
        while True:
            if isinstance(self.executor, PolledExecutor):
                self.executor.poll()
            seconds = getattr(self.executor, "poll_seconds", POLL_SECONDS) if not self._ended else 0
            done = wait(self.open, timeout=seconds, return_when=FIRST_COMPLETED).done if self.open else set()
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
