"""Executors: any of the shape of concurrent.futures trains runs."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from danalab.cli.app import main
from danalab.errors import UserError
from danalab.sweep import run as sweep
from danalab.sweep.executors import Cluster, InlineExecutor, Runs, Training
from danalab.sweep.grid import expand
from danalab.sweep.jobs import Job
from danalab.sweep.run import EXECUTORS, open_executor, run_sweep

FAKE_TRAIN = """
import json, pathlib, sys
folder, plan = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])
attempts = len((folder / "attempts").read_text()) if (folder / "attempts").exists() else 0
with (folder / "attempts").open("a") as file:
    file.write("x")
code, step = plan[min(attempts, len(plan) - 1)]
(folder / "metrics.jsonl").write_text(json.dumps({"step": step}) + "\\n")
(folder / "config.json").write_text('{"config": {}}')
if code == 0:
    (folder / "summary.json").write_text(json.dumps({"status": "finished", "step": step}))
sys.exit("no room [3]" if code == 1 else code)
"""


class Fake(Job):
    """A run whose attempts end with these (exit code, step)."""

    def command(self) -> list[str]:
        return [sys.executable, "-c", FAKE_TRAIN, str(self.folder), json.dumps(self.settings["plan"])]

    def is_same(self) -> bool:
        return True

    @property
    def attempts(self) -> int:
        return len((self.folder / "attempts").read_text())


def fake(folder: Path, *plan: tuple[int, int]) -> Fake:
    return Fake(folder, {"plan": plan})


def outcomes(executor, *jobs: Job) -> dict[str, str | None]:
    """Name of each run -> the reason if it failed."""
    runs, found = Runs(executor), {}
    with executor:
        runs.start(jobs, "runs")
        while ended := runs.ended():
            found |= {job.folder.name: reason for job, reason in ended}
    return found


def test_any_executor_of_the_standard_library_trains_runs(tmp_path):
    jobs = [fake(tmp_path / "a", (0, 10)), fake(tmp_path / "b", (1, 3)), fake(tmp_path / "c", (85, 3))]
    found = outcomes(ThreadPoolExecutor(3), *jobs)
    assert found == {"a": None, "b": "ended with exit code 1: no room [3]", "c": "ended with exit code 85: no output"}
    assert outcomes(ThreadPoolExecutor(1), jobs[0]) == {"a": None}
    assert jobs[0].attempts == 1, "it is finished"


def test_a_future_of_a_polled_executor_can_be_waited_for():
    executor = InlineExecutor()
    futures = [executor.submit(pow, 2, 3), executor.submit(int, "x")]
    assert futures[0].result() == 8
    with pytest.raises(ValueError, match="invalid literal"):
        futures[1].result()


PLUGIN = """
from concurrent.futures import ThreadPoolExecutor
def threads(folder):
    (folder / "here").mkdir(parents=True)
    return ThreadPoolExecutor(1)
def nothing(folder):
    return 3
def broken(folder):
    raise OSError("no queue")
"""


@pytest.mark.slow
def test_a_sweep_runs_at_an_executor_of_a_file(fixed, tmp_path, capsys):
    (tmp_path / "mine.py").write_text(PLUGIN)
    cells = expand({"opt": ["adamw", "adana"]}, fixed)
    found = run_sweep(tmp_path / "sweep", cells, executor=f"{tmp_path / 'mine.py'}:threads")
    calm = run_sweep(tmp_path / "calm", cells, executor="inline")
    assert (tmp_path / "sweep" / "here").is_dir()
    assert not found.failures
    assert [row["final_loss"] for row in found.rows] == [row["final_loss"] for row in calm.rows]


def test_executors_have_names_that_plugins_may_add_to_and_others_are_refused_in_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.py").write_text(PLUGIN)
    assert EXECUTORS.names() == ["pool", "inline", "slurm"]  # loaded, so that it stays when the next line is undone
    monkeypatch.setattr(EXECUTORS, "_items", dict(EXECUTORS._items))
    EXECUTORS.add("threads", lambda folder: ThreadPoolExecutor(1))
    assert isinstance(open_executor("threads", tmp_path), ThreadPoolExecutor)
    for name, message in {
        "treads": "unknown executor 'treads' (did you mean 'threads'?)",
        f"{tmp_path / 'mine.py'}:nothing": "it returns a int, which has no submit()",
        f"{tmp_path / 'mine.py'}:broken": "OSError: no queue",
        f"{tmp_path / 'mine.py'}:absent": "there is no 'absent' in it",
    }.items():
        with pytest.raises(UserError) as refused:
            open_executor(name, tmp_path)
        assert message in str(refused.value)
    assert main(["sweep", "--grid", "seed=0", "--executor", "threads", "--wait"]) == 2
    assert "--wait: is for --executor slurm, not threads" in capsys.readouterr().err


def test_the_library_that_was_built_in_is_an_array_that_is_waited_for_or_the_pool(tmp_path, monkeypatch, caplog):
    cluster = Cluster(at_once=3)
    monkeypatch.setattr(sweep, "which", lambda _: "/usr/bin/sbatch")
    assert open_executor("submitit", tmp_path, cluster=cluster).waits
    monkeypatch.setattr(sweep, "which", lambda _: None)
    assert open_executor("submitit", tmp_path, cluster=cluster)._parallel == 3
    assert "--executor submitit is now: --executor slurm --wait" in caplog.text


def test_a_unit_can_be_pickled_and_says_that_a_run_diverged(tmp_path):
    import pickle

    job = Job(tmp_path / "run", {})
    job.folder.mkdir()
    (job.folder / "config.json").write_text('{"config": {}}')
    (job.folder / "summary.json").write_text('{"status": "nonfinite"}')
    unit = pickle.loads(pickle.dumps(Training(job)))
    with pytest.raises(UserError, match="diverged"):
        unit()
