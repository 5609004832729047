"""Executors: any of the shape of concurrent.futures trains runs; submitit's queues a run again until it is done."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from danalab.cli.app import main
from danalab.errors import UserError
from danalab.ladder.runs.cluster import Cluster, SubmititExecutor, minutes
from danalab.ladder.runs.executors import InlineExecutor, Runs, Training
from danalab.ladder.runs.grid import expand
from danalab.ladder.runs.jobs import Job
from danalab.ladder.runs.sweep import EXECUTORS, open_executor, run_sweep
from danalab.train.system.slurm import Resources
from slurm_stand_ins import Cluster as StandIn

FAKE_TRAIN = """
import json, os, pathlib, signal, sys, time
folder, plan = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])
attempts = len((folder / "attempts").read_text()) if (folder / "attempts").exists() else 0
with (folder / "attempts").open("a") as file:
    file.write("x")
code, step = plan[min(attempts, len(plan) - 1)]
(folder / "metrics.jsonl").write_text(json.dumps({"step": step}) + "\\n")
(folder / "config.json").write_text('{"config": {}}')
def stop(*_):
    (folder / "told").touch()
    sys.exit(85)
if code == "wait":
    signal.signal(signal.SIGTERM, stop)
    (folder / "waiting").touch()
    time.sleep(60)
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


def fake(folder: Path, *plan: tuple[int | str, int]) -> Fake:
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


@pytest.fixture
def local(monkeypatch):
    """Executors of jobs on this machine, which can import this file and what it imports."""
    pytest.importorskip("submitit")
    tests = Path(__file__).parents[2]
    given = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tests.parent), str(tests), *([given] if given else [])]))

    def make(folder: Path, **more) -> SubmititExecutor:
        return SubmititExecutor(folder, Cluster(resources=Resources(gpus=0, cpus=1), **more))

    return make


def test_without_submitit_one_line_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(UserError, match=r"--executor submitit needs submitit: pip install 'danalab\[cluster\]'"):
        SubmititExecutor(tmp_path, Cluster())


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("90", 90), ("90:30", 91), ("24:00:00", 1440), ("1-12", 2160), ("2-0:30", 2910), ("0-1:00:00", 60)],
)
def test_time_limits_are_those_of_sbatch(limit, expected):
    assert minutes(limit) == expected


def test_runs_at_slurm_by_submitit_are_an_array_that_is_requeued(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    for key, value in StandIn(tmp_path / "slurm").environment().items():
        monkeypatch.setenv(key, value)
    resources = Resources(account="abc", gpus=2, cpus=3, time="1-12", sbatch=("qos=low", "exclusive"))
    executor = SubmititExecutor(tmp_path / "sweep", Cluster(resources=resources, at_once=1, setup=("module load x",)))
    for name in "ab":
        executor.submit(Training(Job(tmp_path / name, {})))
    executor.poll()
    script = next((tmp_path / "sweep" / "submitit").glob("*submission*.sh"))
    text = script.read_text()
    for line in ("account=abc", "array=0-1%1", "gpus-per-node=2", "cpus-per-task=6", "time=2160", "requeue", "qos=low",
                 "signal=USR2@300", "mem=32G", "nodes=1", "exclusive"):  # fmt: skip
        assert f"#SBATCH --{line}\n" in text
    assert "\nmodule load x\n" in text
    assert [unit.job.settings for unit in map(executor._requeued, [Training(Job(tmp_path / "a", {}))])] == [
        {"nproc": 2}
    ]
    with pytest.raises(UserError, match="--nodes 2: a job of submitit is on one machine"):
        SubmititExecutor(tmp_path, Cluster(resources=Resources(nodes=2)))


@pytest.mark.slow
def test_submitit_starts_a_run_again_that_was_told_to_stop_and_reports_failures(local, tmp_path):
    jobs = [fake(tmp_path / "a", (85, 3), (85, 6), (0, 10)), fake(tmp_path / "b", (1, 3))]
    found = outcomes(local(tmp_path / "sweep", at_once=2), *jobs)
    assert found == {"a": None, "b": "ended with exit code 1: no room [3]"}
    assert jobs[0].attempts == 3


@pytest.mark.slow
def test_submitit_gives_up_a_run_that_makes_no_step(local, tmp_path):
    job = fake(tmp_path / "a", (85, 3))
    found = outcomes(local(tmp_path / "sweep"), job)
    assert found == {"a": "3 attempts in a row ended at step 3: not started again"}
    assert job.attempts == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "attempts", "reason"),
    [
        ((("wait", 3), ("wait", 6), (0, 10)), 3, None),
        ((("wait", 3),), 4, "3 attempts in a row ended at step 3: not started again"),
    ],
    ids=["preempted twice", "without a step"],
)
def test_submitit_queues_a_preempted_run_again_after_its_checkpoint_while_it_makes_steps(
    local, tmp_path, plan, attempts, reason
):
    job, executor, ended = fake(tmp_path / "a", *plan), local(tmp_path / "sweep"), threading.Event()

    def preempt() -> None:
        while not ended.is_set():
            if (job.folder / "waiting").exists():
                (job.folder / "waiting").unlink()
                controller = executor._jobs[0][0]._process.pid
                (task,) = Path(f"/proc/{controller}/task/{controller}/children").read_text().split()
                os.kill(int(task), signal.SIGUSR2)
            time.sleep(0.02)

    threading.Thread(target=preempt, daemon=True).start()
    assert outcomes(executor, job) == {"a": reason}
    ended.set()
    assert (job.folder / "told").exists(), "SIGTERM, and time for a checkpoint"
    assert job.attempts == attempts


def test_a_unit_can_be_pickled_and_says_that_a_run_diverged(tmp_path):
    import pickle

    job = Job(tmp_path / "run", {})
    job.folder.mkdir()
    (job.folder / "config.json").write_text('{"config": {}}')
    (job.folder / "summary.json").write_text('{"status": "nonfinite"}')
    unit = pickle.loads(pickle.dumps(Training(job)))
    with pytest.raises(UserError, match="diverged"):
        unit()
