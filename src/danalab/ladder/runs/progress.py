"""Progress of a pool of runs: a bar per run on a terminal, elsewhere a line per minute with the remaining time.

After the first `FIRST_STEPS` steps of a run the time of all runs is said, by the speed since the first row of metrics.
"""

import time
from collections.abc import Callable, Iterable, Sequence

from danalab.ladder.runs.jobs import Job

LINE_SECONDS = 60.0
FIRST_LINE_SECONDS = 15.0
FIRST_STEPS = 50


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
        self._open = dict.fromkeys(waiting, 0.0)
        """Index of a run that has not ended -> share of it that was done when the pool started."""
        self._count = len(self._open)
        self._first: tuple[float, float] | None = None
        """When the first steps were seen [s], and the work that they were."""
        self._estimated = False
        self._done = 0.0
        """Work that has ended since the start, in units of `_work`."""
        for i in self._open:
            self._open[i] = self._share(i)
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
        if self._estimated:
            return
        new = {i: self._jobs[i].progress()[0] - self._open[i] * (self._jobs[i].steps() or 0) for i in running}
        work = sum(self._work(i) * max(self._share(i) - self._open[i], 0.0) for i in new) + self._done
        if self._first is None and work > 0:
            self._first = (self._clock(), work)  # until here it was mostly the start of processes
        elif self._first is not None and work > self._first[1] and max(new.values(), default=0) >= FIRST_STEPS:
            left = sum(self._work(i) * (1 - self._open[i]) for i in self._open) + self._done - work
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
        left = self.seconds_left(running)
        eta = "remaining time not known yet" if left is None else f"about {_duration(left)} left"
        return f"{self._count - len(self._open)} of {self._count} runs done; {'; '.join(shown)}; {eta}"

    def seconds_left(self, running: Iterable[int]) -> float | None:
        """Remaining time by the speed since the start; None where nothing is done yet."""
        part = sum(self._work(i) * max(self._share(i) - self._open[i], 0.0) for i in running)
        done, elapsed = self._done + part, self._clock() - self._began
        left = sum(self._work(i) * (1 - self._open[i]) for i in self._open) - part
        return elapsed * left / done if done > 0 else None

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
