"""Training time, without evaluation: in total and since the last row."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Interval:
    """Steps and times since the last row."""

    steps: int = 0
    seconds: float = 0.0
    """Training time [s]."""
    data_wait: float = 0.0
    """Part of `seconds` spent waiting for batches [s]."""
    save_wait: float = 0.0
    """Part of `seconds` spent waiting for checkpoints [s]."""


class Stopwatch:
    """Measures from `start` on; `seconds` may be set to the time of earlier jobs."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """Training time of all jobs of the run [s]."""
        self.interval = Interval()
        self.start()

    def start(self) -> None:
        """Measure from now on."""
        self._clock, self._left_out = time.perf_counter(), 0.0

    @contextmanager
    def leaving_out(self) -> Iterator[None]:
        """Exclude the time of a block."""
        begun = time.perf_counter()
        yield
        self._left_out += time.perf_counter() - begun

    def tick(self) -> None:
        """Add the time since the last tick."""
        now = time.perf_counter()
        passed = now - self._clock - self._left_out
        self._clock, self._left_out = now, 0.0
        self.seconds += passed
        self.interval.seconds += passed

    def take_interval(self) -> Interval:
        """The interval since the last call; starts a new one."""
        self.tick()
        found, self.interval = self.interval, Interval()
        return found
