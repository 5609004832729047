"""The progress line of a preparation, on standard error."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress


class Progress:
    """Bytes done of bytes in all, tokens a second, time left; nothing where standard error is no terminal."""

    def __init__(self, what: str, total_bytes: int | None, *, shown: bool):
        """`total_bytes`: None when unknown; then there is no estimate of the time left."""
        console = Console(stderr=True)
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not (shown and console.is_terminal),
            transient=True,
        )
        self._task = self._bar.add_task(what, total=total_bytes, rate="")
        self._begun = time.perf_counter()
        self._tokens_before: int | None = None

    def show(self, done_bytes: int, tokens: int) -> None:
        """Tell how far the work is."""
        if self._tokens_before is None:  # an earlier attempt's tokens are no speed of this one
            self._tokens_before, self._begun = tokens, time.perf_counter()
            return
        rate = (tokens - self._tokens_before) / max(time.perf_counter() - self._begun, 1e-9)
        self._bar.update(self._task, completed=done_bytes, rate=f"{tokens:,} tokens, {rate:,.0f} tokens/s")

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
