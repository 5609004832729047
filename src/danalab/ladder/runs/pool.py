"""Many runs on one machine: training processes side by side, with a progress bar each.

A run is its folder, so the pool keeps no state: what is finished is skipped, what was stopped resumes by itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from danalab.errors import UserError
from danalab.scaling.architectures import ARCHITECTURES
from danalab.scaling.learning_rate import OPTIMIZERS
from danalab.train.config.train_config import MECHANICS, flag
from danalab.train.run.folder import RunFolder
from danalab.train.run.metrics import last_rows

POLL_SECONDS = 0.25
_SHAPES_THE_RUN = ("heads", "size", "tokens_per_param", "lr_multiplier")
"""Settings that count among the mechanics of a job, because others follow from them."""
DIVERGED = "diverged: a loss was not finite (nonfinite.json); it is not tried again unless its folder is deleted"


@dataclass(frozen=True)
class Job:
    """One run to be made."""

    folder: Path
    """The run folder."""
    settings: dict[str, Any]
    """Flags of `danalab train`, by field name; `iterations` among them."""

    def flags(self) -> list[str]:
        """Flags of `danalab train` that make the run."""
        words = ["--run-dir", str(self.folder)]
        for name, value in self.settings.items():
            if isinstance(value, (list, tuple)):
                words += [flag(name), *map(str, value)]
            elif value is not None:
                words.append(f"{flag(name)}={value}")
        return words

    def command(self) -> list[str]:
        """The command line that makes the run."""
        return [sys.executable, "-m", "danalab", "train", *self.flags()]

    def is_finished(self) -> bool:
        """Whether the folder holds this very run, ended."""
        folder = RunFolder(self.folder)
        if not folder.config_file.exists() or (folder.read_summary() or {}).get("status") != "finished":
            return False
        return self.is_same()

    def is_same(self) -> bool:
        """Whether what was begun in the folder is this very run."""
        made = self._made()
        return all(_same(name, made.get(name), value) for name, value in self.settings.items())

    def differences(self) -> list[str]:
        """How the run that was made in the folder differs from this one: what cannot be gone on with; mostly nothing.

        How a run is carried out is no difference, nor is where its data lie, nor what the run did not know.
        """
        folder = RunFolder(self.folder)
        if not folder.config_file.is_file() or not folder.metrics_file.is_file():
            return []
        made = self._made()
        return [
            f"{flag(name)} {made[name]} there, {value} here"
            for name, value in self.settings.items()
            if name in made
            and (name not in MECHANICS or name in _SHAPES_THE_RUN)
            and not _same(name, made[name], value)
        ]

    def _made(self) -> dict[str, Any]:
        """The settings of what was begun in the folder."""
        made = RunFolder(self.folder).read_config()["config"]
        return {**made, **(made.get("optimizer_settings") or {})}

    def has_diverged(self) -> bool:
        """Whether the folder holds this very run, ended by a loss that is not finite: again, it would end so again."""
        folder = RunFolder(self.folder)
        return (
            folder.config_file.exists()
            and (folder.read_summary() or {}).get("status") == "nonfinite"
            and self.is_same()
        )

    def progress(self) -> tuple[int, float | None]:
        """(steps done, last validation loss near the end of the metrics), for a person to look at."""
        step, val_loss = 0, None
        for row in last_rows(RunFolder(self.folder).metrics_file):
            step, val_loss = row["step"], row.get("val/loss", val_loss)
        return step, val_loss


def _same(name: str, made: Any, wanted: Any) -> bool:
    """Whether a recorded setting is the one that is wanted: 1 is 1.0, a path its words, an alias its optimizer."""
    if wanted is None:
        return True  # automatic: what was recorded came of it
    names = {"opt": OPTIMIZERS, "arch": ARCHITECTURES}.get(name)
    if names is not None:
        return names.canonical(str(wanted)) == made
    try:
        return float(made) == float(wanted)
    except (TypeError, ValueError):
        return str(made) == str(wanted)


@dataclass(frozen=True)
class Failure:
    """A run that did not end well."""

    job: Job
    reason: str


def run_jobs(
    jobs: Sequence[Job],
    *,
    parallel: int | None = None,
    title: str,
    keep_going: bool = False,
    on_end: Callable[[Job], Any] = lambda job: None,
) -> list[Failure]:
    """Make all runs, `parallel` at a time (default: one a core), each with its share of the cores' threads.

    Args:
        keep_going: a run that fails does not stop the others; it is in the list returned.
        on_end: called after each run that ended, well or not.
    Raises:
        UserError: a run failed, without `keep_going`; names it and gives its last words. Runs beside it are stopped,
            and resume when the pool is started again.
        SystemExit: SIGTERM came; the runs were stopped at a checkpoint.

    A run that another process is making (a pool that was killed leaves its children, or a second pool works on the same
    folder) is waited for, not begun beside it. One that ended by a loss that is not finite is not made again: it would
    end so again.
    """
    diverged = [i for i, job in enumerate(jobs) if job.has_diverged()]
    waiting = [i for i, job in enumerate(jobs) if i not in diverged and not job.is_finished()]
    failures = [Failure(jobs[i], DIVERGED) for i in diverged]
    if failures and not keep_going:
        raise UserError(f"run {failures[0].job.folder} {DIVERGED}")
    if not waiting:
        return failures
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parallel = max(1, min(parallel or cores, len(waiting)))
    threads = max(1, cores // parallel)
    running: dict[int, subprocess.Popen[str]] = {}
    with _Display(title, jobs) as display, _sigterm_ends():
        try:
            while waiting or running:
                if not running and all(map(is_taken, (jobs[i] for i in waiting))):
                    display.say("waiting for runs that another process is making")
                while len(running) < parallel and (free := [i for i in waiting if not is_taken(jobs[i])]):
                    waiting.remove(free[0])
                    if jobs[free[0]].is_finished():  # by another process
                        on_end(jobs[free[0]])
                    else:
                        running[free[0]] = _start(jobs[free[0]], threads)
                for index, process in list(running.items()):
                    display.update(index)
                    if process.poll() is not None:
                        del running[index]
                        display.ended(index)
                        if process.returncode != 0:
                            failures.append(Failure(jobs[index], _last_words(jobs[index], process.returncode)))
                            if not keep_going:
                                raise UserError(f"run {jobs[index].folder} {failures[-1].reason}")
                        on_end(jobs[index])
                time.sleep(POLL_SECONDS)
        finally:
            for process in running.values():
                process.terminate()
            for process in running.values():
                process.wait()
    return failures


@contextmanager
def _sigterm_ends() -> Iterator[None]:
    """SIGTERM leaves by an exception, so that the runs are told to stop: Python alone would leave them behind."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's to handle
        return

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def is_taken(job: Job) -> bool:
    """Whether another process is making the run."""
    return job.folder.is_dir() and RunFolder(job.folder).is_locked()


def _start(job: Job, threads: int) -> subprocess.Popen[str]:
    job.folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
    with open(job.folder / "log.txt", "a", encoding="utf-8") as log:
        return subprocess.Popen(job.command(), stdout=log, stderr=subprocess.STDOUT, text=True, env=environment)


def _last_words(job: Job, code: int) -> str:
    words = (job.folder / "log.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"ended with exit code {code}: {words[-1] if words else 'no output'}"


class _Display:
    """A bar a run on a terminal; elsewhere a plain line when a run ends."""

    def __init__(self, title: str, jobs: Sequence[Job]):
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        self._jobs = jobs
        self._console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}{task.fields[of]} steps  {task.fields[loss]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._tasks = [
            self._progress.add_task(job.folder.name, total=total, start=False, loss="", of=f"/{total}" if total else "")
            for job in jobs
            for total in [job.settings.get("iterations")]
        ]
        self._words = [""] * len(jobs)
        self._said: set[str] = set()
        self._console.print(f"{title}: {len(jobs)} runs")

    def __enter__(self) -> _Display:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, index: int) -> None:
        step, loss = self._jobs[index].progress()
        if step == 0:
            return
        if loss is not None:
            self._words[index] = f"val loss {loss:.4f}"
        self._progress.start_task(self._tasks[index])
        self._progress.update(self._tasks[index], completed=step, loss=self._words[index])

    def say(self, words: str) -> None:
        """A line for people, once."""
        if words not in self._said:
            self._said.add(words)
            self._console.print(words)

    def ended(self, index: int) -> None:
        self.update(index)
        if self._progress.disable:
            step, _ = self._jobs[index].progress()
            self._console.print(f"  {self._jobs[index].folder.name}: {step} steps, {self._words[index]}")
