"""The pool of training processes: what becomes of its runs when it is stopped."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from danalab.ladder.runs.pool import Job, run_jobs

NOTES_ITS_END = """
import pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
def end(*_):
    (folder / "told").touch()
    sys.exit(143)
signal.signal(signal.SIGTERM, end)
(folder / "begun").touch()
time.sleep(60)
"""


class Waiting(Job):
    """A run that does nothing until it is told to stop."""

    def command(self) -> list[str]:
        return [sys.executable, "-c", NOTES_ITS_END, str(self.folder)]


def test_sigterm_stops_the_runs_of_a_pool_before_it_ends(tmp_path: Path) -> None:
    jobs = [Waiting(tmp_path / name, {}) for name in ("a", "b")]
    before = signal.getsignal(signal.SIGTERM)

    def stop_when_begun() -> None:
        while not all((job.folder / "begun").exists() for job in jobs):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop_when_begun, daemon=True).start()
    with pytest.raises(SystemExit) as ended:
        run_jobs(jobs, parallel=2, title="waiting")
    assert ended.value.code == 143
    assert all((job.folder / "told").exists() for job in jobs)
    assert signal.getsignal(signal.SIGTERM) == before
