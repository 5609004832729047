"""Progress of a run on standard error: one live line on a terminal, plain lines elsewhere."""

import logging
import sys
from typing import Any

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from danalab.train.callbacks.base import Callback


class ConsoleProgress(Callback):
    """Shows the rows of metrics."""

    name = "console"

    def __init__(
        self, iterations: int, start_step: int, console: Console | None = None, sample_tokens: int | None = None
    ):
        """Args:
        sample_tokens: tokens of each sequence of the data, to show sequences per second; None: not shown.
        """
        self._iterations = iterations
        self._sample_tokens = sample_tokens
        self._console = console or Console(stderr=True)
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
        words = f"loss {row['train/loss']:.4f}" if row.get("train/loss") is not None else "skipped"
        if "rl/reward" in row:
            words += f"  reward {row['rl/reward']:.3f}"
        words += self._val if self._progress or "val/loss" in row else ""
        words += f"  lr {row['lr']:.3g}  {row['tokens_per_second']:,.0f} tok/s"
        if self._sample_tokens is not None:
            words += f"  {row['tokens_per_second'] / self._sample_tokens:,.3g} samples/s"
        if row.get("mfu") is not None:
            words += f"  MFU {row['mfu']:.1%}"
        if self._progress:
            self._progress.update(self._task, completed=row["step"], words=words)
        else:
            left = (self._iterations - row["step"]) * row["seconds_per_step"]
            print(
                f"step {row['step']}/{self._iterations}  {words}  {_duration(left)} left", file=sys.stderr, flush=True
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
        handler = RichHandler(console=Console(stderr=True), show_time=False, show_path=False)
    else:
        handler = StderrHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
