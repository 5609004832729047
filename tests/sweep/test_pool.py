"""The pool of training processes: what becomes of its runs when it is stopped."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import Pipe
from pathlib import Path
from typing import ClassVar

import pytest

from danalab.errors import UserError
from danalab.sweep import pool
from danalab.sweep.executors import Runs
from danalab.sweep.jobs import Job
from danalab.sweep.pool import Progress, run_jobs
from danalab.sweep.processes import ProcessDied

NOTES_ITS_END = """
import os, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
def end(*_):
    (folder / "told").touch()
    sys.exit(143)
signal.signal(signal.SIGTERM, end)
(folder / "begun").write_text(str(os.getpid()))
time.sleep(60)
"""


class Waiting(Job):
    """A run that does nothing until it is told to stop."""

    def command(self) -> list[str]:
        return [sys.executable, "-m", "stand_in_run", NOTES_ITS_END, str(self.folder)]


@pytest.mark.parametrize("runs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_sigterm_stops_the_runs_of_a_pool_before_it_ends(tmp_path: Path, runs: int) -> None:
    jobs = [Waiting(tmp_path / name, {}) for name in ("a", "b")[:runs]]
    before = signal.getsignal(signal.SIGTERM)

    def stop_when_begun() -> None:
        while not all((job.folder / "begun").exists() for job in jobs):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop_when_begun, daemon=True).start()
    with pytest.raises(SystemExit) as ended:
        run_jobs(jobs, parallel=runs, title="waiting")
    assert ended.value.code == 143
    assert all((job.folder / "told").exists() for job in jobs)
    assert signal.getsignal(signal.SIGTERM) == before


class Scripted(Job):
    """A run that is a Python script of one line."""

    def command(self) -> list[str]:
        return [sys.executable, "-m", "stand_in_run", self.settings["script"]]


def ends_of(jobs: list[Job], parallel: int | None = None) -> list[tuple[Job, str | None]]:
    """Runs in the order of their ends, with the reasons of those that failed."""
    with pool.PoolExecutor(parallel) as executor:
        runs = Runs(executor)
        runs.start(jobs, "runs")
        return [each for ended in iter(runs.ended, []) for each in ended]


@pytest.mark.slow
def test_a_run_that_crashes_ends_alone_and_the_others_of_its_worker_go_on(tmp_path: Path) -> None:
    scripts = ["import os; os.kill(os.getpid(), 9)", "print('fine')", "raise SystemExit(4)"]
    jobs = [Scripted(tmp_path / str(i), {"script": script}) for i, script in enumerate(scripts)]
    ended = ends_of(jobs, parallel=1)
    assert [(job, reason and reason.split(":")[0]) for job, reason in ended] == [
        (jobs[0], "ended with exit code -9"), (jobs[1], None), (jobs[2], "ended with exit code 4"),
    ]  # fmt: skip
    assert (jobs[1].folder / "log.txt").read_text() == "fine\n"


@pytest.mark.slow
def test_the_progress_of_a_pool_says_why_a_run_failed(tmp_path: Path, capsys) -> None:
    ends_of([Scripted(tmp_path / "a", {"script": "raise SystemExit('no room [3]')"})])
    assert "a: ended with exit code 1: no room [3]" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["{}", "null", "0", '"two"', "true"])
def test_a_number_of_threads_that_is_none_is_refused_by_name(tmp_path, monkeypatch, content) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / pool.THREADS_FILE).write_text(content)
    with pytest.raises(UserError, match=r"threads\.json: malformed"):
        run_jobs([Job(tmp_path / "a", {"device": "cpu"})], title="one", parallel=1)


POOL = """
import pathlib, sys
from danalab.sweep.pool import run_jobs
from danalab.sweep.jobs import Job
class Waiting(Job):
    def command(self):
        return [sys.executable, "-m", "stand_in_run", sys.argv[2], str(self.folder)]
run_jobs([Waiting(pathlib.Path(sys.argv[1]), {})], title="waiting")
"""


@pytest.mark.slow
def test_a_pool_that_is_killed_leaves_no_run_behind(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    path = os.pathsep.join(sys.path)
    (tmp_path / "unguarded.py").write_text(POOL)
    command = [sys.executable, str(tmp_path / "unguarded.py"), str(folder), NOTES_ITS_END]
    killed = subprocess.Popen(command, stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": path})
    wait_for(lambda: (folder / "begun").is_file() and (folder / "begun").read_text())
    killed.kill()
    killed.wait()
    wait_for((folder / "told").exists)
    wait_for(lambda: not is_running(int((folder / "begun").read_text())))


def wait_for(condition) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


class FakeChild:
    """A process on a machine with four GPUs whose runs end at once."""

    started: ClassVar[list[tuple[str | None, int | None]]] = []

    def __init__(self, log, environment, threads) -> None:
        self.started.append((environment.get("CUDA_VISIBLE_DEVICES"), threads))
        self.pipe, self._other = Pipe()

    def call(self, work, *given) -> None:
        self._other.send(None)

    def result(self, limit: float) -> None:
        self.pipe.recv()
        raise ProcessDied(0)

    def close(self, *, kill: bool = False) -> None: ...


@pytest.fixture
def started(monkeypatch):
    """(GPUs, threads) of the runs that were started."""
    monkeypatch.setattr(FakeChild, "started", [])
    monkeypatch.setattr(pool, "Child", FakeChild)
    monkeypatch.setattr(pool, "visible_devices", lambda: ["0", "1", "2", "3"])
    return FakeChild.started


def test_runs_are_spread_over_the_gpus_with_as_many_as_they_have_ranks(tmp_path, started) -> None:
    run_jobs([Job(tmp_path / str(i), {}) for i in range(4)], title="four")
    assert [devices for devices, _ in started] == ["0", "1", "2", "3"]
    started.clear()
    run_jobs([Job(tmp_path / f"r{i}", {"nproc": 2}) for i in range(2)], title="two of two ranks")
    assert [devices for devices, _ in started] == ["0,1", "2,3"]


def test_the_faster_number_of_threads_is_measured_once_a_size_and_kept_for_resuming(
    tmp_path, monkeypatch, started
) -> None:
    measured = []
    speeds = {1: 48_700.0, 2: 19_500.0}
    monkeypatch.setattr(pool, "TimedCall", lambda *given: measured.append(given) or (lambda: speeds))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    jobs = [Job(tmp_path / str(i), {"device": "cpu", "d_model": 16, "seed": i}) for i in range(3)]
    run_jobs(jobs, title="three", parallel=1)
    assert (started, len(measured)) == ([(None, 1)] * 3, 1)
    (jobs[0].folder / pool.THREADS_FILE).write_text("2")
    started.clear()
    run_jobs(jobs[:1], title="again", parallel=1)
    assert started == [(None, 2)]


def test_a_number_of_threads_that_is_set_is_left_alone(tmp_path, monkeypatch, started) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    run_jobs([Job(tmp_path / "a", {"device": "cpu"})], title="one", parallel=1)
    assert started == [(None, None)]


def test_a_line_of_progress_has_the_runs_under_way_and_the_remaining_time_by_their_cost(tmp_path) -> None:
    now = 0.0
    jobs = [Job(tmp_path / name, {"iterations": 10}, flops) for name, flops in (("a", 1.0), ("b", 3.0))]
    with Progress(clock=lambda: now) as progress:
        list(map(progress.add, jobs))
        assert "not known yet" in progress.line([0])
        now = 600.0
        progress.ended(0)
        (tmp_path / "b").mkdir()
        (tmp_path / "b" / "metrics.jsonl").write_text(json.dumps({"step": 5, "val/loss": 3.2}) + "\n")
        now = 1500.0
        assert progress.line([1]) == "1 of 2 runs done; b (step 5, val loss 3.2000); about 15 min left"


def test_the_remaining_time_is_said_after_the_start_and_a_run_ends_with_its_last_evaluation(tmp_path, capsys) -> None:
    now = 0.0
    jobs = [Job(tmp_path / "a", {"iterations": 600})]
    jobs[0].folder.mkdir()
    with Progress(clock=lambda: now) as progress:
        progress.add(jobs[0])
        lines = []
        for now, step in ((15.0, 10), (20.0, 60)):  # noqa: B007 - the clock
            (jobs[0].folder / "metrics.jsonl").write_text(json.dumps({"step": step, "val/loss": 3.5}) + "\n")
            progress.update([0])
            lines.append(progress.line([0]))
        (jobs[0].folder / "summary.json").write_text(json.dumps({"status": "finished", "val/loss": 3.4}))
        progress.ended(0)
    assert "not known yet" in lines[0]
    assert "about 3 min left" in lines[1]
    assert capsys.readouterr().err.splitlines()[-1] == "  a: 60 steps, val loss 3.4000"


def test_the_time_of_all_runs_is_said_once_after_the_first_fifty_steps(tmp_path, capsys) -> None:
    now = 0.0
    jobs = [Job(tmp_path / name, {"iterations": 600}) for name in "ab"]
    for job in jobs:
        job.folder.mkdir()
    with Progress(clock=lambda: now) as progress:
        list(map(progress.add, jobs))
        for now, step in ((5.0, 10), (6.0, 20), (10.0, 60), (11.0, 70)):  # 10 steps per second, after a start of 4 s  # noqa: B007 - the clock
            (tmp_path / "a" / "metrics.jsonl").write_text(json.dumps({"step": step}) + "\n")
            progress.update([0])
    assert capsys.readouterr().err.splitlines() == ["about 2 min for all runs on this machine"]


def test_forced_colours_without_a_terminal_bring_lines_not_bars(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in the kernel of a notebook
    jobs = [Job(tmp_path / "a", {"iterations": 10})]
    with Progress() as progress:
        progress.add(jobs[0])
        progress.update([0])
        progress.ended(0)
    written = capsys.readouterr().err
    assert len(written.splitlines()) == 1
    assert "\r" not in written
