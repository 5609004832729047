"""Many runs on one machine, side by side: on its cores, or spread over its GPUs.

A run is its folder, so the pool keeps no state: finished runs are skipped, stopped ones resume.
"""

import logging
import math
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from danalab.errors import UserError
from danalab.files import read_json, validated, write_json
from danalab.scaling.hardware import available_cores, chosen_threads
from danalab.sweep.executors import POLL_SECONDS, PolledFuture, Runs, Training, end_of_log
from danalab.sweep.jobs import Job
from danalab.sweep.processes import Child, ProcessDied, ProcessPool, TimedCall, become
from danalab.train.config.fields import Count

log = logging.getLogger(__name__)

LINE_SECONDS = 60.0
FIRST_LINE_SECONDS = 15.0  # progress lines where the output is no terminal
FIRST_STEPS = 50  # steps of a run after which the time of all runs is estimated
SPEED_SECONDS = 0.5  # how long each number of threads is measured
THREADS_FILE = "threads.json"  # in a run folder: its number of threads, which a resumed run keeps, as sums depend on it
_COSTS_TIME = ("arch", "heads", "size", "d_model", "n_layers", "n_heads", "head_dim", "mlp_dim", "n_kv_heads",
               "vocab_size", "seq_len", "batch_size", "data")  # fmt: skip
"""Settings that the best number of threads depends on."""


def run_jobs(jobs: Sequence[Job], *, parallel: int | None = None, title: str) -> None:
    """Train all runs, `parallel` at a time; see `PoolExecutor`.

    A run that fails is a UserError with its name and the end of its log; runs beside it are stopped, and resume when
    the pool is started again. SystemExit: SIGTERM was received; the runs were stopped at a checkpoint.
    """
    with sigterm_raises(), PoolExecutor(parallel) as pool:
        runs = Runs(pool)
        runs.start(jobs, title)
        while ended := runs.ended():
            for job, reason in ended:
                if reason is not None:
                    raise UserError(f"run {job.folder} {reason}")


class PoolExecutor(ProcessPool):
    """Trains runs in processes side by side, those of the lowest priority number first.

    Each run gets its share of the cores as threads, or fewer where fewer are faster; OMP_NUM_THREADS overrides this.
    Where there are GPUs, each run gets the least loaded one (one per rank). A run that another process is training is
    waited for, not started beside it.

    Args:
        parallel: runs at a time; default one per GPU, or per core where there is none.
    """

    def __init__(self, parallel: int | None = None):
        super().__init__(parallel or 0)
        self._cores = available_cores()
        self._jobs: list[Job] = []
        self._indices: dict[PolledFuture, int] = {}
        self._devices: dict[PolledFuture, list[str]] = {}
        self._progress: Progress | None = None
        self._threads: dict[tuple[str, ...], int] = {}

    def submit(self, fn: Callable[..., Any], /, *args: Any, **settings: Any) -> PolledFuture:
        future = super().submit(fn, *args, **settings)
        job = self.units[-1][0].job
        self._indices[future] = len(self._jobs)
        self._jobs.append(job)
        self.progress.add(job)
        return future

    def poll(self) -> None:
        if not self.units and not self.running:
            return
        if not self.running and all(unit.job.is_taken() for unit, _ in self.units):
            self.say("waiting for runs that another process is training")
            time.sleep(POLL_SECONDS)
        while self.units and len(self.running) < self._slots():
            free = [each for each in self.units if not each[0].job.is_taken()]
            if not free:
                break
            chosen = min(free, key=lambda each: each[0].job.priority)
            self.units.remove(chosen)
            try:
                if chosen[0].job.is_finished():  # by another process
                    self._end(*chosen, None, None)
                else:
                    self._start(*chosen)
            except UserError as error:
                self._end(*chosen, None, error)
        self.progress.update([self._indices[future] for _, future, _ in self.running.values()])
        self._take_results()

    def say(self, words: str) -> None:
        self.progress.say(words)

    @property
    def progress(self) -> "Progress":
        if self._progress is None:
            self._progress = Progress().__enter__()
        return self._progress

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Stop the runs at a checkpoint."""
        if self.running:
            self.say("stopping the runs at a checkpoint; start the same command again to go on")
        super().shutdown()
        if self._progress is not None:
            self._progress.__exit__()
        self._progress = None

    def _end(self, unit: Any, future: PolledFuture, value: Any, error: Exception | None) -> None:
        if isinstance(error, ProcessDied):  # as every run ends
            error = UserError(end_of_log(unit.job, error.code)) if error.code else None
        self.progress.ended(self._indices[future], None if error is None else str(error))
        super()._end(unit, future, value, error)

    def _slots(self) -> int:
        devices = [] if all(map(_on_cpu, self._jobs)) else visible_devices()
        ranks = max(int(job.settings.get("nproc") or 1) for job in self._jobs)
        slots = self._parallel or (max(1, len(devices) // ranks) if devices else self._cores)
        return max(1, min(slots, len(self._jobs)))

    def _start(self, unit: Training, future: PolledFuture) -> None:
        job = unit.job
        job.folder.mkdir(parents=True, exist_ok=True)
        environment = {"PYTHONUNBUFFERED": "1"}
        if not _on_cpu(job) and visible_devices():
            load = Counter(device for _, each, _ in self.running.values() for device in self._devices.get(each, ()))
            ranks = int(job.settings.get("nproc") or 1)
            self._devices[future] = sorted(visible_devices(), key=load.__getitem__)[:ranks]
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(self._devices[future])
        child = Child(job.folder / "log.txt", environment, self._threads_of(job))
        child.call(become, job.command())
        self.running[child] = unit, future, math.inf

    def _threads_of(self, job: Job) -> int | None:
        """Threads of a run: its share of the cores, or one, whichever is faster for its size; None: not ours to say."""
        if chosen_threads() is not None:
            return None
        recorded = job.folder / THREADS_FILE
        if recorded.is_file():
            return validated(Count, read_json(recorded), recorded, strict=True)  # pyright: ignore[reportArgumentType]
        share = max(1, self._cores // self._slots())
        size = (str(share), *(str(job.settings.get(name)) for name in _COSTS_TIME))
        if share == 1 or (not _on_cpu(job) and visible_devices()):
            self._threads[size] = share
        if size not in self._threads:
            with suppress(Exception):  # settings that cannot run: the run itself says why
                speeds = TimedCall(measure_threads, (job.settings, [1, share]))()
                self._threads[size] = max(speeds, key=speeds.__getitem__)
                shown = ", ".join(f"{count}: {speed:,.0f} tokens/s" for count, speed in speeds.items())
                log.info("%s: %d threads (%s)", job.folder.name, self._threads[size], shown)
        write_json(recorded, self._threads.setdefault(size, share))
        return self._threads[size]


@cache
def visible_devices() -> list[str]:
    """Names of the GPUs, as CUDA_VISIBLE_DEVICES takes them."""
    visible = [device for device in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if device.strip()]
    count = TimedCall(_device_count)()
    return visible[:count] or [str(i) for i in range(count)]


def _device_count() -> int:
    import torch

    return torch.cuda.device_count()


def _on_cpu(job: Job) -> bool:
    return str(job.settings.get("device") or "").startswith("cpu")


def measure_threads(settings: dict[str, Any], candidates: list[int]) -> dict[int, float]:
    """Tokens a second of forward and backward passes of a run's model with each number of threads, on the CPU."""
    import torch

    from danalab.data import vocabulary_of
    from danalab.models import build_model
    from danalab.sweep.grid import Cell
    from danalab.train.config.resolve import resolve

    config = Cell("speed", settings).config(Path())
    resolved = resolve(config, vocabulary_of(config.source, config.tokenizer))
    model = build_model(resolved.model, seed=0)
    tokens = torch.randint(resolved.model.vocab_size, (config.batch_size or 1, resolved.model.seq_len))
    speeds = {}
    for threads in candidates:
        torch.set_num_threads(threads)
        passes, began = -1, time.perf_counter()
        while passes < 1 or time.perf_counter() - began < SPEED_SECONDS:
            model(tokens, tokens)[0].backward()
            passes += 1
            if passes == 0:  # the first pass warms up
                began = time.perf_counter()
        speeds[threads] = passes * tokens.numel() / (time.perf_counter() - began)
    return speeds


@contextmanager
def sigterm_raises() -> Iterator[None]:
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


class Progress:
    """What the pool prints, on standard error. Runs are known by the order in which they were added."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        self._jobs: list[Job] = []
        self._clock, self._began = clock, clock()
        self._next_line = self._began + FIRST_LINE_SECONDS
        self._console = Console(stderr=True)
        steps = TextColumn("{task.completed:.0f}{task.fields[of]} steps  {task.fields[loss]}")
        columns = (TextColumn("{task.description}"), BarColumn(), steps, TimeElapsedColumn(), TimeRemainingColumn())
        # Notebooks force colours, but cannot move a cursor.
        self._bars = Bars(*columns, console=self._console, disable=not self._console.file.isatty())
        self._open: dict[int, float] = {}
        """Index of a run that has not ended -> share of it that was done when it was added."""
        self._first: tuple[float, float] | None = None
        """When the first steps were seen [s], and the work that they were."""
        self._estimated = False
        self._done = 0.0  # work that has ended since the start, in units of `_work`
        self._tasks: list[Any] = []
        self._said: set[str] = set()

    def add(self, job: Job) -> None:
        """A run is to be trained."""
        total = job.settings.get("iterations")
        of = f"/{total}" if total else ""
        self._tasks.append(self._bars.add_task(job.folder.name, total=total, start=False, loss="", of=of))
        self._jobs.append(job)
        self._open[len(self._jobs) - 1] = self._share(len(self._jobs) - 1)

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
            runs = "this run" if len(self._jobs) == 1 else "all runs"
            self.say(f"about {_duration(seconds)} for {runs} on this machine")

    def line(self, running: Iterable[int]) -> str:
        """Runs done, runs under way with their steps, and the remaining time."""
        shown = []
        for index in running:
            step, loss = self._jobs[index].progress()
            shown.append(f"{self._jobs[index].folder.name} (step {step}{_loss(loss)})")
        done, left = self._amounts(running)
        known = done > 0 and (self._estimated or self._done > 0)  # before, processes started: too long by minutes
        seconds = (self._clock() - self._began) * left / done if known else None
        eta = "remaining time not known yet" if seconds is None else f"about {_duration(seconds)} left"
        return f"{len(self._jobs) - len(self._open)} of {len(self._jobs)} runs done; {'; '.join(shown)}; {eta}"

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
            words = failure or f"{step} steps{_loss(self._jobs[index].final_loss() or loss)}"
            self._console.print(f"  {self._jobs[index].folder.name}: {words}", markup=False, soft_wrap=True)

    def _redraw(self, index: int) -> None:
        step, loss = self._jobs[index].progress()
        if step:
            self._bars.start_task(self._tasks[index])
            self._bars.update(self._tasks[index], completed=step, loss=_loss(loss).lstrip(", "))

    def _work(self, index: int) -> float:
        return self._jobs[index].flops or 1.0

    def _share(self, index: int) -> float:
        total = self._jobs[index].steps()
        return min(self._jobs[index].progress()[0] / total, 1.0) if total else 0.0


def _loss(loss: float | None) -> str:
    return "" if loss is None else f", val loss {loss:.4f}"


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 5400 else f"{max(seconds / 60, 1):.0f} min"
