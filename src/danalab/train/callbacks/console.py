"""What a run prints: progress (a live line on a terminal, plain lines elsewhere), warnings of spikes."""

import functools
import logging
import math
import statistics
import sys
from collections import deque
from typing import Any

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from danalab.train.callbacks.base import Callback, CallbackContext


@functools.cache
def terminal() -> Console:
    """This process's standard error; a message through another `Console` would be printed into the live line."""
    return Console(stderr=True)


class ConsoleProgress(Callback):
    """Shows the rows of metrics."""

    name = "console"

    def __init__(
        self,
        iterations: int,
        start_step: int,
        console: Console | None = None,
    ):
        self._iterations = iterations
        self._console = console or terminal()
        self._val = ""
        self._progress: Progress | None = None
        if self._console.file.isatty():  # a notebook forces colours, but cannot redraw a line
            self._progress = Progress(
                TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
                BarColumn(bar_width=20),
                TextColumn("{task.fields[words]}"),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._task = self._progress.add_task("", total=iterations, completed=start_step, words="")
            self._progress.start()

    def on_row(self, row: dict[str, Any]) -> None:
        if "val/loss" in row:
            self._val = f"  val {row['val/loss']:.4f}"
            if row.get("val/bpb") is not None:
                self._val += f" ({row['val/bpb']:.4f} bits/byte)"
            if "val/loss_average" in row:
                self._val += f", of the average {row['val/loss_average']:.4f}"
        words = f"loss {row['train/loss']:.4f}" if row.get("train/loss") is not None else "skipped"
        if "rl/reward" in row:
            words += f"  reward {row['rl/reward']:.3f}"
        words += self._val if self._progress or "val/loss" in row else ""
        words += f"  lr {row['lr']:.3g}  {row['tokens_per_second']:,.0f} tok/s"
        if row.get("mfu") is not None:
            words += f"  MFU {row['mfu']:.1%}"
        if self._progress:
            self._progress.update(self._task, completed=row["step"], words=words)
        else:
            left = (self._iterations - row["step"]) * row["seconds_per_step"]
            print(
                f"step {row['step']}/{self._iterations}  {words}  {_duration(left)} left",
                file=sys.stderr,
                flush=True,
            )

    def on_end(self, summary: dict[str, Any]) -> None:
        self.close()

    def close(self) -> None:
        if self._progress:
            self._progress.stop()
            self._progress = None


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{seconds:02d}s"


class StderrHandler(logging.Handler):
    """Writes to the standard error of the moment: a stream that was replaced may be closed."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one message."""
        print(self.format(record), file=sys.stderr)


def log_to_stderr() -> None:
    """Show this package's log messages; on a terminal by rich, so that they do not break the live line."""
    logger = logging.getLogger("danalab")
    if logger.handlers:
        return
    handler: logging.Handler
    if sys.stderr.isatty():
        handler = RichHandler(console=terminal(), show_time=False, show_path=False)
    else:
        handler = StderrHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


log = logging.getLogger(__name__)


class SpikeMonitor(Callback):
    """Warns when a logged loss or update norm exceeds the recent median by `THRESHOLD` robust deviations.

    Update norms spike before losses do. The deviation is the median absolute deviation, which a spike in the window
    does not widen; values that are not finite are ignored.
    """

    name = "spikes"
    KEYS = ("train/loss", "update_norm")

    WINDOW, LEAST, THRESHOLD = 50, 20, 8.0
    """Rows that are kept; rows before the first warning; deviations from the median."""

    def __init__(self, context: CallbackContext):
        super().__init__(context)
        self.spikes = 0
        self._history: dict[str, deque[float]] = {key: deque(maxlen=self.WINDOW) for key in self.KEYS}

    def on_row(self, row: dict[str, Any]) -> None:
        for key, history in self._history.items():
            value = row.get(key)
            if value is None or not math.isfinite(value):
                continue
            if len(history) >= self.LEAST:
                middle = statistics.median(history)
                spread = 1.4826 * statistics.median(abs(x - middle) for x in history)
                # The floor avoids false alarms in a window of nearly equal values.
                if value > middle + self.THRESHOLD * max(spread, 0.01 * abs(middle)):
                    self.spikes += 1
                    log.warning(
                        "step %d: %s spikes to %.4g (recent median %.4g)", row["step"], key, value, middle
                    )
            history.append(value)

    def on_end(self, summary: dict[str, Any]) -> None:
        summary["spikes"] = self.spikes

    def state_dict(self) -> dict[str, Any]:
        return {
            "spikes": self.spikes,
            "history": {key: list(values) for key, values in self._history.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.spikes = state["spikes"]
        for key, values in state["history"].items():
            self._history[key].clear()
            self._history[key].extend(values)
