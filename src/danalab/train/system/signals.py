"""Stop signals and exit codes. Needs no torch."""

import contextlib
import signal
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)

NONFINITE = 3
"""Exit code of a job that met a loss, gradient or weight that is not finite."""
REQUEUE = 85
"""Exit code of a job that SIGTERM or SIGUSR1 stopped and that wrote its checkpoint: `slurm_job.sh` requeues it."""
INTERRUPTED = 130
"""Exit code after SIGINT."""
ORDERLY = (0, NONFINITE, REQUEUE, INTERRUPTED)
"""Exit codes of ranks that ended together."""


@contextlib.contextmanager
def holding_signals() -> Iterator[None]:
    """Stop signals wait in processes that the block starts, until they call `release_signals`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def release_signals() -> None:
    """Receive the stop signals that waited since this process was started."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


class StopRequest:
    """Turns SIGINT, SIGTERM and SIGUSR1 into a flag that the loop reads between steps.

    A second SIGINT interrupts at once. Handlers are set in the main thread only and restored at the end of the
    outermost `with`.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._old: dict[int, Any] = {}
        self._depth = 0
        self._raises = False

    def __bool__(self) -> bool:
        return self.signal is not None

    @contextlib.contextmanager
    def interrupting(self) -> Iterator[None]:
        """Let the first signal raise KeyboardInterrupt, for work that does not read the flag."""
        self._raises = True
        try:
            yield
        finally:
            self._raises = False

    def agreed(self, agree: Callable[[int], int]) -> bool:
        """Whether any rank received a signal; it becomes the signal of all. `agree`: the maximum over ranks."""
        number = agree(int(self.signal or 0))
        if number:
            self.signal = signal.Signals(number)
        return bool(number)

    def __enter__(self) -> "StopRequest":
        if self._depth == 0 and threading.current_thread() is threading.main_thread():
            self._old = {number: signal.signal(number, self._receive) for number in STOP_SIGNALS}
        self._depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth:
            return
        for number, old in self._old.items():
            signal.signal(number, old)
        self._old = {}

    @property
    def exit_code(self) -> int:
        """`REQUEUE` for SIGTERM and SIGUSR1, `INTERRUPTED` for SIGINT."""
        return INTERRUPTED if self.signal == signal.SIGINT else REQUEUE

    def _receive(self, number: int, frame: types.FrameType | None) -> None:
        again = self.signal == signal.SIGINT and number == signal.SIGINT
        self.signal = signal.Signals(number)
        if again or self._raises:
            self._raises = False  # what cleans up is not interrupted
            raise KeyboardInterrupt
