"""Training time: all that passes while the loop runs, but for evaluation; in all, and since the last row."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Interval:
    """What passed since the last row."""

    steps: int = 0
    seconds: float = 0.0
    """Training time."""
    data_wait: float = 0.0
    """Of which waiting for batches [s]."""
    save_wait: float = 0.0
    """Of which held up by checkpoints [s]."""


class Stopwatch:
    """Counts from `start` on; `seconds` may be set to what earlier jobs took."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """Training time so far, over all jobs of the run."""
        self.interval = Interval()
        self.start()

    def start(self) -> None:
        """Count from now on."""
        self._clock, self._left_out = time.perf_counter(), 0.0

    @contextmanager
    def leaving_out(self) -> Iterator[None]:
        """Within, time is not training time."""
        begun = time.perf_counter()
        yield
        self._left_out += time.perf_counter() - begun

    def tick(self) -> None:
        """Add what passed since the last tick."""
        now = time.perf_counter()
        passed = now - self._clock - self._left_out
        self._clock, self._left_out = now, 0.0
        self.seconds += passed
        self.interval.seconds += passed

    def take_interval(self) -> Interval:
        """What passed since this was last asked for."""
        self.tick()
        found, self.interval = self.interval, Interval()
        return found
