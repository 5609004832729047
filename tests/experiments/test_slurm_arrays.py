"""Sweeps and ladders as SLURM arrays, on stand-ins for its commands that run the arrays' scripts here."""

import contextlib
import json
import shlex
import sys
import threading
import time
from pathlib import Path

import pytest

from danalab.cli.app import main
from danalab.errors import UserError
from danalab.experiments import slurm as arrays
from danalab.experiments.cells import expand
from danalab.experiments.ladder import RATE, LadderPlan, run_ladder
from danalab.experiments.runs import Queued, collect
from danalab.experiments.slurm import SlurmRunner
from danalab.train.slurm import COMMAND, Resources
from experiments.conftest import TRAINER, run_all
from slurm_stand_ins import Cluster as StandIn


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    stand_in = StandIn(tmp_path)
    words = shlex.join([sys.executable, str(TRAINER)])
    (stand_in.bin / "danalab").write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    for key, value in stand_in.environment(MADE=str(tmp_path / "made")).items():
        monkeypatch.setenv(key, value)
    return stand_in


def cluster(folder, gpus=0, command=("danalab",), at_once=None, **more):
    return SlurmRunner(folder, Resources(gpus=gpus, cpus=1, at_once=at_once), command=command, **more)


def made(slurm):
    file = slurm.folder / "made"
    return file.read_text().split() if file.is_file() else []


def run_sweep(folder, cells, **more):
    """The runner after a call of the sweep."""
    runner = cluster(folder, **more)
    with contextlib.suppress(Queued):
        runner.train(cells)
    return runner


CELLS = expand({"opt": ["adamw", "adana"], "seed": [0, 1]}, {"heads": 3})


def test_a_sweep_is_one_array_and_a_second_call_submits_nothing_while_it_is_queued(slurm, tmp_path):
    folder = tmp_path / "sweep"
    first = run_sweep(folder, CELLS, at_once=2)
    assert sorted(first.queued) == ["adamw-s0", "adamw-s1", "adana-s0", "adana-s1"]
    (script,) = (folder / "slurm").glob("*.sh")
    text = script.read_text()
    assert "#SBATCH --array=0-3%2\n" in text
    assert "#SBATCH --requeue\n" in text
    again = run_sweep(folder, CELLS)
    assert again.queued == first.queued
    assert len(slurm.queue.read_text().splitlines()) == 1

    assert slurm.run_tasks(PREEMPTED="adana-s0") == [0, 0, 0, 0]
    assert made(slurm).count("adana-s0") == 2, "it was queued again by itself"
    done = run_sweep(folder, CELLS)
    assert not done.queued
    assert not done.failures
    assert [row["status"] for row in done.gather()] == ["finished"] * 4
    assert [row["device_hours"] for row in done.gather()] == [0.01] * 4


def test_only_what_is_unfinished_is_submitted_again_and_not_for_ever(slurm, tmp_path):
    folder = tmp_path / "sweep"
    for attempt in range(arrays.ATTEMPTS):
        run_sweep(folder, CELLS)
        codes = slurm.run_tasks(BROKEN="adamw-s1")
        assert codes == ([0, 1, 0, 0] if attempt == 0 else [1])
    last = run_sweep(folder, CELLS)
    assert not last.queued
    (reason,) = last.failures.values()
    assert "not finished after 3 jobs" in reason
    assert made(slurm).count("adamw-s0") == 1
    assert [row["name"] for row in collect(folder)] == ["adamw-s0", "adana-s0", "adana-s1"]


def test_a_ladder_goes_on_with_its_next_part_when_it_is_called_again(slurm, tmp_path):
    plan = LadderPlan(opts=("adamw",), heads=(3,), multipliers=(0.5, 1.0), seeds=(0, 1), trials=3)
    parts = []
    for _ in range(10):
        runner = cluster(tmp_path / "ladder")
        tuned, _ = run_ladder(plan, runner)
        if not runner.queued:
            break
        parts.append(len(runner.queued))
        slurm.run_tasks()
    assert parts == [2, 1, 1], "trials, one beyond the edge, another seed at the best"
    (choice,) = tuned
    assert (choice.settings[RATE], choice.trials, choice.edges) == (1.0, 3, [])
    assert len(runner.gather()) == 4


def test_waiting_ends_when_nothing_is_queued_and_says_what_failed(slurm, tmp_path):
    def run_when_submitted() -> None:
        for attempt in range(1, arrays.ATTEMPTS + 1):
            while (
                sum('"sbatch": "' in file.read_text() for file in tmp_path.glob("sweep/slurm/*.json"))
                < attempt
            ):
                time.sleep(0.02)
            slurm.run_tasks(BROKEN="adana-s1")

    worker = threading.Thread(target=run_when_submitted, daemon=True)
    worker.start()
    found = run_sweep(tmp_path / "sweep", CELLS, wait=True, poll_seconds=0.05)
    worker.join()
    assert not found.queued
    assert len(found.gather()) == 3
    assert "not finished after" in found.failures["adana-s1"]


def test_an_array_larger_than_slurm_takes_becomes_several(slurm, tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, "LARGEST_ARRAY", 3)
    found = run_sweep(tmp_path / "sweep", CELLS)
    assert len(found.queued) == 4
    assert len(list((tmp_path / "sweep" / "slurm").glob("*.sh"))) == 2


def test_ranks_are_slurms_to_start(slurm, tmp_path):
    cells = expand({"seed": [0]}, {"nproc": 2})
    with pytest.raises(UserError, match="--nproc 2: under SLURM the ranks are started by srun"):
        run_sweep(tmp_path / "sweep", cells)
    run_sweep(tmp_path / "sweep", CELLS[:1], gpus=2)
    assert "--distributed-backend=ddp" in next((tmp_path / "sweep" / "slurm").glob("*.sh")).read_text()


def test_a_dry_run_writes_the_script_and_submits_nothing(slurm, fixed, tmp_path, capsys):
    words = [f"{key}={value}" for key, value in fixed.items()]
    command = ["sweep", "--grid", "opt=adamw,adana", "--fixed", *words, "--out", str(tmp_path / "sweep")]
    assert (
        main([*command, "--executor", "slurm", "--gpus", "0", "--account", "abc", "--dry-run", "--json"]) == 0
    )
    told = json.loads(capsys.readouterr().out)
    assert [run["name"] for run in told["runs"]] == ["adamw", "adana"]
    (script,) = told["scripts"]
    assert "#SBATCH --account=abc\n" in Path(script).read_text()
    assert not slurm.queue.exists()
    assert main([*command, "--account", "abc"]) == 2
    assert "--account: is for --executor slurm, not pool" in capsys.readouterr().err


@pytest.mark.slow
def test_real_runs_are_made_by_an_array(slurm, fixed, tmp_path, capsys):
    cells = expand({"opt": ["adamw", "adana"]}, fixed)
    folder = tmp_path / "sweep"
    run_sweep(folder, cells, command=COMMAND)
    assert slurm.run_tasks() == [0, 0]
    found = run_sweep(folder, cells, command=COMMAND)
    calm, _ = run_all(cells, tmp_path / "calm")
    assert [row["final_loss"] for row in found.gather()] == [row["final_loss"] for row in calm]


@pytest.mark.parametrize("content", ["{}", "[]", '{"runs": 3, "sbatch": null}'])
def test_a_record_of_another_form_is_refused_by_name(tmp_path, content):
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "x.json").write_text(content)
    with pytest.raises(UserError, match=r"slurm/x\.json: malformed"):
        cluster(tmp_path).write_scripts(CELLS)
