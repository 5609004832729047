"""Many runs on one machine, side by side: on its cores, or spread over its GPUs.

A run is its folder, so the pool keeps no state: finished runs are skipped, stopped ones resume.
"""

import logging
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from danalab.errors import UserError
from danalab.files import read_json, validated, write_json
from danalab.ladder.runs.jobs import DIVERGED, Failure, Job, is_taken
from danalab.ladder.runs.worker import WarmProcess
from danalab.scaling.hardware import available_cores
from danalab.train.config.fields import Count

log = logging.getLogger(__name__)

POLL_SECONDS = 0.25
LINE_SECONDS = 60.0
FIRST_LINE_SECONDS = 15.0
"""Progress lines where the output is no terminal."""
FIRST_STEPS = 50
"""Steps of a run after which the time of all runs is estimated."""
THREADS_FILE = "threads.json"
"""In a run folder: its number of threads, which a resumed run keeps, as sums depend on it."""
_COSTS_TIME = ("arch", "heads", "size", "d_model", "n_layers", "n_heads", "head_dim", "mlp_dim", "n_kv_heads",
               "vocab_size", "seq_len", "batch_size", "data")  # fmt: skip
"""Settings that the best number of threads depends on."""


def run_jobs(
    jobs: Sequence[Job],
    *,
    parallel: int | None = None,
    title: str,
    keep_going: bool = False,
    on_end: Callable[[Job], Any] = lambda job: None,
) -> list[Failure]:
    """Train all runs, `parallel` at a time.

    Each run gets its share of the cores as threads, or fewer where fewer are faster; OMP_NUM_THREADS overrides this.
    Where there are GPUs, each run gets the least loaded one (one per rank).

    Args:
        parallel: default one run per GPU, or per core where there is none.
        keep_going: a run that fails does not stop the others; it is in the list returned.
        on_end: called after each run that ended, successful or not.
    Raises:
        UserError: a run failed, without `keep_going`; has its name and the end of its log. Runs beside it are stopped,
            and resume when the pool is started again.
        SystemExit: SIGTERM was received; the runs were stopped at a checkpoint.

    A run that another process is training is waited for, not started beside it. A run that ended by a loss that is not
    finite is not repeated.
    """
    diverged = [i for i, job in enumerate(jobs) if job.has_diverged()]
    waiting = [i for i, job in enumerate(jobs) if i not in diverged and not job.is_finished()]
    failures = [Failure(jobs[i], DIVERGED) for i in diverged]
    if failures and not keep_going:
        raise UserError(f"run {failures[0].job.folder} {DIVERGED}")
    if not waiting:
        return failures
    with (
        Progress(title, jobs, waiting) as progress,
        _sigterm_raises(),
        closing(_Machine(jobs, parallel, len(waiting))) as machine,
    ):
        try:
            while waiting or machine.running:
                if not machine.running and all(is_taken(jobs[i]) for i in waiting):
                    progress.say("waiting for runs that another process is training")
                while machine.has_room and (free := [i for i in waiting if not is_taken(jobs[i])]):
                    waiting.remove(free[0])
                    if jobs[free[0]].is_finished():  # by another process
                        progress.ended(free[0])
                        on_end(jobs[free[0]])
                    else:
                        machine.start(free[0])
                progress.update(machine.running)
                for index, code in machine.ended():
                    reason = _end_of_log(jobs[index], code) if code != 0 else None
                    progress.ended(index, reason)
                    if reason is not None:
                        failures.append(Failure(jobs[index], reason))
                        if not keep_going:
                            raise UserError(f"run {jobs[index].folder} {reason}")
                    on_end(jobs[index])
                time.sleep(POLL_SECONDS)
        except (KeyboardInterrupt, SystemExit):
            progress.say("stopping the runs at a checkpoint; start the same command again to go on")
            raise
    return failures


class _Machine:
    """The worker process, and which run has which threads and GPUs."""

    def __init__(self, jobs: Sequence[Job], parallel: int | None, waiting: int):
        self._jobs, self._worker = jobs, WarmProcess()
        self._cores = available_cores()
        self._devices = self._worker.devices if not all(map(_on_cpu, jobs)) else []
        ranks = max(int(job.settings.get("nproc") or 1) for job in jobs)
        slots = parallel or (max(1, len(self._devices) // ranks) if self._devices else self._cores)
        self._slots = max(1, min(slots, waiting))
        self._threads: dict[tuple[str, ...], int] = {}
        self._load: Counter[str] = Counter()
        self.running: dict[int, list[str]] = {}
        """Index of a run -> its GPUs."""

    def close(self) -> None:
        """Stop the runs."""
        self._worker.close()

    @property
    def has_room(self) -> bool:
        return len(self.running) < self._slots

    def start(self, index: int) -> None:
        job = self._jobs[index]
        job.folder.mkdir(parents=True, exist_ok=True)
        environment = {"PYTHONUNBUFFERED": "1"}
        devices: list[str] = []
        if self._devices and not _on_cpu(job):
            ranks = int(job.settings.get("nproc") or 1)
            devices = sorted(self._devices, key=lambda device: self._load[device])[:ranks]
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
        self._load.update(devices)
        self.running[index] = devices
        self._worker.start(index, job.command(), job.folder / "log.txt", environment, self._threads_of(job))

    def ended(self) -> list[tuple[int, int]]:
        """(index, exit code) of the runs that ended since the last call."""
        ended = self._worker.ended()
        for index, _ in ended:
            self._load.subtract(self.running.pop(index))
        if not self._worker.is_alive:
            self._worker.close()
            self._worker = WarmProcess()
        return ended

    def _threads_of(self, job: Job) -> int | None:
        """Threads of a run: its share of the cores, or one, whichever is faster for its size; None: not ours to say."""
        if "OMP_NUM_THREADS" in os.environ:
            return None
        recorded = job.folder / THREADS_FILE
        if recorded.is_file():
            recorded_threads = read_json(recorded)
            return validated(Count, recorded_threads, recorded, strict=True)  # pyright: ignore[reportArgumentType]
        share = max(1, self._cores // self._slots)
        size = tuple(str(job.settings.get(name)) for name in _COSTS_TIME)
        if share == 1 or (self._devices and not _on_cpu(job)):
            self._threads[size] = share
        if size not in self._threads:
            speeds = self._worker.tokens_per_second(job.settings, [1, share])
            self._threads[size] = max(speeds, key=speeds.__getitem__, default=share)
            shown = ", ".join(f"{count}: {speed:,.0f} tokens/s" for count, speed in speeds.items())
            log.info("%s: %d threads (%s)", job.folder.name, self._threads[size], shown or "not measured")
        write_json(recorded, self._threads[size])
        return self._threads[size]


def _on_cpu(job: Job) -> bool:
    return str(job.settings.get("device") or "").startswith("cpu")


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    """SIGTERM raises SystemExit, so that the runs are stopped: Python's default would end without a word to them."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can set handlers
        return

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end_of_log(job: Job, code: int) -> str:
    file = job.folder / "log.txt"
    lines = file.read_text(encoding="utf-8", errors="replace").strip().splitlines() if file.is_file() else []
    return f"ended with exit code {code}: {lines[-1] if lines else 'no output'}"


class Progress:
    """What `run_jobs` prints, on standard error."""

    def __init__(
        self, title: str, jobs: Sequence[Job], waiting: Iterable[int], clock: Callable[[], float] = time.monotonic
    ):
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        self._jobs, self._clock, self._began = jobs, clock, clock()
        self._next_line = self._began + FIRST_LINE_SECONDS
        self._console = Console(stderr=True)
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}{task.fields[of]} steps  {task.fields[loss]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.file.isatty(),  # notebooks force colours, but cannot move a cursor
        )
        self._open = {i: self._share(i) for i in waiting}
        """Index of a run that has not ended -> share of it that was done when the pool started."""
        self._count = len(self._open)
        self._first: tuple[float, float] | None = None
        """When the first steps were seen [s], and the work that they were."""
        self._estimated = False
        self._done = 0.0
        """Work that has ended since the start, in units of `_work`."""
        self._tasks = {
            i: self._bars.add_task(
                jobs[i].folder.name, total=total, start=False, loss="", of=f"/{total}" if total else ""
            )
            for i in self._open
            for total in [jobs[i].settings.get("iterations")]
        }
        self._said: set[str] = set()
        self._console.print(f"{title}: {self._count} of {len(jobs)} runs to train")

    def __enter__(self) -> "Progress":
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def update(self, running: Iterable[int]) -> None:
        """Redraw the bars, or print a line where one is due; once, say how long all runs will take."""
        self._estimate(running)
        if not self._bars.disable:
            for index in running:
                self._redraw(index)
        elif self._clock() >= self._next_line:
            self._next_line = self._clock() + LINE_SECONDS
            self._console.print(self.line(running), soft_wrap=True)

    def _estimate(self, running: Iterable[int]) -> None:
        """Say how long all runs will take, by their speed after the first steps: before, processes started."""
        if self._estimated:
            return
        work, left = self._amounts(running)
        steps = [self._jobs[i].progress()[0] - self._open[i] * (self._jobs[i].steps() or 0) for i in running]
        if self._first is None and work > 0:
            self._first = (self._clock(), work)
        elif self._first is not None and work > self._first[1] and max(steps, default=0) >= FIRST_STEPS:
            seconds = left * (self._clock() - self._first[0]) / (work - self._first[1])
            self._estimated = True
            self.say(f"about {_duration(seconds)} for {'this run' if self._count == 1 else 'all runs'} on this machine")

    def line(self, running: Iterable[int]) -> str:
        """Runs done, runs under way with their steps, and the remaining time."""
        shown = []
        for index in running:
            step, loss = self._jobs[index].progress()
            words = f"step {step}" + ("" if loss is None else f", val loss {loss:.4f}")
            shown.append(f"{self._jobs[index].folder.name} ({words})")
        done, left = self._amounts(running)
        seconds = (self._clock() - self._began) * left / done if done > 0 else None
        eta = "remaining time not known yet" if seconds is None else f"about {_duration(seconds)} left"
        return f"{self._count - len(self._open)} of {self._count} runs done; {'; '.join(shown)}; {eta}"

    def _amounts(self, running: Iterable[int]) -> tuple[float, float]:
        """(work done since the start, work left), in units of `_work`."""
        part = sum(self._work(i) * max(self._share(i) - self._open[i], 0.0) for i in running)
        return self._done + part, sum(self._work(i) * (1 - self._open[i]) for i in self._open) - part

    def say(self, words: str) -> None:
        if words not in self._said:
            self._said.add(words)
            self._console.print(words)

    def ended(self, index: int, failure: str | None = None) -> None:
        """A run has ended; `failure` is the reason of one that failed."""
        self._done += self._work(index) * (1 - self._open.pop(index))
        self._redraw(index)
        if self._bars.disable or failure is not None:
            step, loss = self._jobs[index].progress()
            words = failure or f"{step} steps{_loss(loss)}"
            self._console.print(f"  {self._jobs[index].folder.name}: {words}", markup=False, soft_wrap=True)

    def _redraw(self, index: int) -> None:
        step, loss = self._jobs[index].progress()
        if step:
            self._bars.start_task(self._tasks[index])
            self._bars.update(self._tasks[index], completed=step, loss=_loss(loss).lstrip(", "))

    def _work(self, index: int) -> float:
        return self._jobs[index].flops or 1.0

    def _share(self, index: int) -> float:
        """Share of a run's steps that are done."""
        total = self._jobs[index].steps()
        return min(self._jobs[index].progress()[0] / total, 1.0) if total else 0.0


def _loss(loss: float | None) -> str:
    return "" if loss is None else f", val loss {loss:.4f}"


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 5400 else f"{max(seconds / 60, 1):.0f} min"
