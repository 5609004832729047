"""A trace of a few steps by torch's profiler, for chrome://tracing or Perfetto."""

import logging
import tempfile
from pathlib import Path
from typing import Any

import torch

from danalab.files import write_atomically
from danalab.train.callbacks.base import CALLBACKS, Callback, CallbackContext

log = logging.getLogger(__name__)

TOP = 10
"""Operators that are shown."""
WAIT, WARMUP, ACTIVE = 3, 1, 3
"""Steps of a job that are skipped (allocation, compilation), that warm up the profiler, and that are traced."""


class ProfilerTrace(Callback):
    """Traces steps WAIT + WARMUP + 1 to WAIT + WARMUP + ACTIVE of this job into `trace-STEP-rankR.json.gz`."""

    name = "profiler"
    setting = "profile"

    def __init__(self, context: CallbackContext):
        super().__init__(context)
        self._folder, self._rank = context.folder / "profile", context.strategy.world.rank
        self._profiler: Any = None
        self._step = 0

    def on_start(self, step: int) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._profiler = torch.profiler.profile(
            activities=activities,
            schedule=torch.profiler.schedule(wait=WAIT, warmup=WARMUP, active=ACTIVE, repeat=1),
            on_trace_ready=self._write,
            profile_memory=True,
        )
        self._profiler.start()

    def _write(self, profiler: Any) -> None:
        path = self._folder / f"trace-{self._step:08d}-rank{self._rank}.json.gz"
        with tempfile.TemporaryDirectory(prefix=".trace-", dir=self._folder) as beside:  # torch writes through links
            written = Path(beside) / path.name
            profiler.export_chrome_trace(str(written))
            written.replace(path)
        device = "device" if torch.cuda.is_available() else "cpu"
        table = profiler.key_averages().table(sort_by=f"self_{device}_time_total", max_name_column_width=60)
        write_atomically(self._folder / f"operators-{self._step:08d}-rank{self._rank}.txt", table)
        log.info("profile of steps %d to %d: %s", self._step - ACTIVE + 1, self._step, path)
        if self._rank == 0:
            log.info("the %d operators that take the most time:", TOP)
            for name, milliseconds, share in top_operators(profiler, device):
                log.info("  %5.1f%%  %8.2f ms  %s", 100 * share, milliseconds, name)

    def after_update(self, step: int) -> None:
        if self._profiler is not None:
            self._step = step
            self._profiler.step()

    on_skip = after_update

    def close(self) -> None:
        """Stop; warns where the job was too short for a trace."""
        if self._profiler is None:
            return
        if not list(self._folder.glob(f"trace-*-rank{self._rank}.json.gz")):
            log.warning("--profile: the job ended before step %d of its own, there is no trace", WAIT + WARMUP + ACTIVE)
        profiler, self._profiler = self._profiler, None
        profiler.on_trace_ready = None  # drops an incomplete trace
        profiler.stop()


def top_operators(profiler: Any, device: str) -> list[tuple[str, float, float]]:
    """(name, own time of a traced step [ms], share of all) of the operators with the most time on `device`."""
    times = {event.key: float(getattr(event, f"self_{device}_time_total")) for event in profiler.key_averages()}
    times = {name: time for name, time in times.items() if not name.startswith("ProfilerStep")}
    total = sum(times.values()) or 1.0
    chosen = sorted(times.items(), key=lambda item: -item[1])[:TOP]
    return [(name, time / 1e3 / ACTIVE, time / total) for name, time in chosen]


CALLBACKS.add(ProfilerTrace.name, ProfilerTrace)
