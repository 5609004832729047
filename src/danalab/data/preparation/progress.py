"""Progress of a preparation on standard error: a bar on a terminal, else a line per minute."""

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from danalab.data.sources import TRAIN, VAL, Source, SourcePosition

_SECONDS_A_LINE = 60.0


class WorkEstimate:
    """The finished and the total amount of work, in the same unit."""

    def __init__(self, source: Source, max_tokens: int | None):
        """`max_tokens`: the work ends there, or at the end of the source."""
        self._source = source
        self._max_tokens = max_tokens
        self._known = False
        self._total_text: int | None = None
        self._stored: dict[str, list[int]] = {}

    def __call__(self, place: SourcePosition, tokens: int, text_bytes: int) -> tuple[float, float | None]:
        """Finished and total work at `place`, after `tokens` and `text_bytes`."""
        if not self._known:
            self._known = True
            self._total_text = self._source.size_bytes()
            self._stored = {side: self._source.part_bytes(side) or [] for side in (TRAIN, VAL)}
        if self._max_tokens is not None:
            return tokens, self._max_tokens
        if self._total_text is not None:
            return text_bytes, self._total_text
        # Compressed files: the finished ones give the ratio of text to stored bytes.
        finished = sum(self._stored[TRAIN][: place.part] if place.side == TRAIN else self._stored[TRAIN])
        finished += sum(self._stored[VAL][: place.part]) if place.side == VAL else 0
        total = sum(map(sum, self._stored.values()))
        return text_bytes, text_bytes * total / finished if finished else None


class ProgressBar:
    """Share of the work, tokens per second, time left."""

    def __init__(self, label: str, *, shown: bool):
        """`label` names the work; nothing is written unless `shown`."""
        console = Console(stderr=True)
        self._label = label
        has_cursor = console.file.isatty()  # a notebook forces colours, but cannot redraw a line
        self._lines = shown and not has_cursor
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not (shown and has_cursor),
            transient=True,
        )
        self._task = self._bar.add_task(label, total=None, rate="")
        self._begun = self._line = time.perf_counter()
        self._before: tuple[float, int] | None = None

    def show(self, done: float, total: float | None, tokens: int) -> None:
        """Show `done` of `total` (None: unknown) in any unit, and the tokens so far."""
        now = time.perf_counter()
        if self._before is None:  # tokens of an earlier attempt do not count for this one's speed
            self._before, self._begun = (done, tokens), now
            return
        seconds = max(now - self._begun, 1e-9)
        rate = f"{tokens:,} tokens, {(tokens - self._before[1]) / seconds:,.0f} tokens/s"
        self._bar.update(self._task, completed=done, total=total, rate=rate)
        if self._lines and now - self._line >= _SECONDS_A_LINE:
            self._line = now
            left = ""
            if total and done > self._before[0]:
                minutes = (total - done) / (done - self._before[0]) * seconds / 60
                left = f", {done / total:.1%}, about {minutes:,.0f} min left"
            print(f"{self._label}: {rate}{left}", file=sys.stderr, flush=True)

    def __enter__(self) -> "ProgressBar":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
