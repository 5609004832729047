"""Processes and executors that make a judgement's runs: they hang, die and lose runs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from danalab.cli.app import main
from danalab.judge import workers as workers_module
from danalab.judge.workers import PlannedRun, RunResult, Workers, read_contestant
from danalab.sweep import processes


@pytest.mark.slow
def test_processes_that_hang_or_die_are_replaced_and_their_output_is_dropped(own, capfd, monkeypatch):
    monkeypatch.setattr(processes, "STARTING", 30.0)
    trials = [
        PlannedRun("synthetic", 3, read_contestant(f"{own}:{name}"), 0.01, 0)
        for name in ("Dies", "Hangs", "Signs", "Raises")
    ]
    with Workers(1) as workers:
        first = dict(workers.execute([trials[2]], 3.0))
        results = {trial.contestant.opt.rpartition(":")[2]: result for trial, result in workers.execute(trials, 3.0)}
    assert next(iter(first.values())).loss == results["Signs"].loss is not None
    assert results["Dies"].failure == "its process died (exit code 7)"
    assert [name for name, result in results.items() if result.from_outside] == ["Hangs"]
    assert results["Hangs"].failure == "did not end in 3 s and was killed"
    assert results["Raises"].failure == "RuntimeError: no step today"
    assert capfd.readouterr().out == ""


HANGING = """
import sys
from danalab.judge.workers import read_contestant
from danalab.judge.workers import PlannedRun, Workers
if __name__ == "__main__":
    with Workers(1) as workers:
        list(workers.execute([PlannedRun("synthetic", 3, read_contestant(sys.argv[1]), 0.01, 0)], 600.0))
"""


@pytest.mark.slow
def test_a_run_that_hangs_ends_with_a_judge_that_is_killed(own, tmp_path):
    (tmp_path / "hanging.py").write_text(HANGING)
    hang = f"open(r'{tmp_path / 'pid'}', 'w').write(str(os.getpid())); time.sleep(1e6)"
    own.write_text(own.read_text().replace("time.sleep(1e6)", hang))
    judge = subprocess.Popen([sys.executable, tmp_path / "hanging.py", f"{own}:Hangs"])
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    judge.kill()
    judge.wait()
    wait_until(lambda: not is_running(int((tmp_path / "pid").read_text())))


def wait_until(condition, seconds=120.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def is_running(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_runs_are_made_at_any_executor_and_one_that_it_loses_is_tried_again(monkeypatch):
    trials = [PlannedRun("char", 2, read_contestant(opt), 1e-3, 1) for opt in ("adamw", "adana")]

    def make(trial, limit):
        if trial is trials[0]:
            raise OSError("the node is gone")
        return RunResult(2.0, seconds=limit)

    monkeypatch.setattr(workers_module, "TimedCall", lambda work, given, limit: partial(make, *given, limit))
    with Workers(ThreadPoolExecutor(2)) as here:
        results = dict(here.execute(trials, 3.0))
    assert results[trials[0]] == RunResult(None, failure="OSError: the node is gone", from_outside=True)
    assert results[trials[1]] == RunResult(2.0, seconds=3.0)


@pytest.mark.slow
def test_a_judgement_at_an_executor_of_a_file_is_that_of_the_pool(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(
        "from concurrent.futures import ThreadPoolExecutor\n\ndef two(folder):\n    return ThreadPoolExecutor(2)\n"
    )
    losses = []
    for name in ("pool", f"{tmp_path / 'mine.py'}:two"):
        ledger = tmp_path / str(len(losses))
        command = ["judge", "adamw", "adana", "--steps", "5", "--trials", "1", "--budget", "8runs", "--executor", name]
        assert main([*command, "--ledger", str(ledger), "--json"]) in (0, 1, 3)
        (verdict,) = json.loads(capsys.readouterr().out)["verdicts"]
        losses.append(verdict["effect"])
    assert losses[0] == losses[1]
    assert main(["judge", "adamw", "adana", "--executor", "slurm"]) == 2
    assert "--executor slurm: a judgement waits for its runs" in capsys.readouterr().err
