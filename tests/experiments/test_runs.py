"""Many runs: finished ones are skipped, foreign ones refused, failures listed, killed sweeps go on."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from danalab.cli.app import main
from danalab.errors import UserError
from danalab.experiments import runs
from danalab.experiments.cells import Cell, expand
from danalab.experiments.runs import collect, read_state
from experiments.conftest import run_all

CELLS = expand({"opt": ["adamw", "adana"], "seed": [0, 1]}, {"heads": 3})


def test_every_run_leaves_a_row_and_is_made_once(trainer, tmp_path):
    first, _ = run_all(CELLS, tmp_path / "sweep", jobs=2)
    assert [row["name"] for row in first] == ["adamw-s0", "adamw-s1", "adana-s0", "adana-s1"]
    assert [row["device_hours"] for row in first] == [0.01] * 4
    again, _ = run_all([*CELLS, *expand({"opt": ["muon"]}, {"heads": 3})], tmp_path / "sweep", jobs=2)
    assert sorted(trainer()) == ["adamw-s0", "adamw-s1", "adana-s0", "adana-s1", "muon"]
    assert [row["name"] for row in again] == [*(row["name"] for row in first), "muon"]
    assert collect(tmp_path / "sweep") == again


def test_failures_are_listed_and_stop_no_other_run(trainer, tmp_path, monkeypatch):
    monkeypatch.setenv("BROKEN", "adamw-s1")
    monkeypatch.setenv("DIVERGES", "adana-s0")
    rows, reasons = run_all(CELLS, tmp_path, jobs=2)
    assert "no room for adamw-s1" in reasons["adamw-s1"]
    assert reasons["adana-s0"] == runs.DIVERGED
    assert [row["final_loss"] is None for row in rows] == [False, True, False]
    monkeypatch.setenv("BROKEN", "")
    run_all(CELLS, tmp_path, jobs=2)
    assert trainer().count("adamw-s1") == 2
    assert trainer().count("adana-s0") == 1, "a repetition would end alike"


def test_a_folder_of_other_settings_is_refused_before_anything_runs(trainer, tmp_path):
    run_all(CELLS[:1], tmp_path)
    other = [*CELLS[1:], Cell("adamw-s0", {**CELLS[0].settings, "heads": 3, "seed": 7})]
    with pytest.raises(UserError, match=r"made with other settings: --seed 0 there, 7 here"):
        run_all(other, tmp_path)
    assert trainer() == ["adamw-s0"]


def test_the_state_of_a_folder(trainer, tmp_path, monkeypatch):
    (cell,) = CELLS[:1]
    folder = tmp_path / "runs" / cell.name
    assert read_state(folder, cell.settings) == ("new", "")
    monkeypatch.setenv("PREEMPTED", cell.name)
    run_all([cell], tmp_path)
    assert read_state(folder, cell.settings) == ("new", ""), "interrupted: it goes on"
    run_all([cell], tmp_path)
    assert read_state(folder, cell.settings) == ("finished", "")
    assert read_state(folder, {**cell.settings, "seed": 1})[0] == "foreign"
    (folder / "summary.json").write_text("{")
    assert read_state(folder, cell.settings) == ("new", ""), "resuming writes it again"


def test_a_packed_row_stands_for_a_run_that_has_no_folder(trainer, tmp_path):
    run_all(CELLS, tmp_path / "sweep")
    assert main(["ladder", "pack", str(tmp_path / "sweep"), "--out", str(tmp_path / "packed")]) == 0
    rows, _ = run_all(CELLS, tmp_path / "packed")
    assert len(rows) == len(trainer()) == 4


def test_the_verb_shows_rate_loss_and_the_best_of_each_optimizer(trainer, tmp_path, capsys):
    words = ["sweep", "--grid", "opt=adamw,adana", "lr-multiplier=1,2", "--fixed", "heads=3", "--jobs", "1"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    said = capsys.readouterr()
    lines = [line for line in said.err.splitlines() if "val loss" in line]
    assert len(lines) == 4
    assert all("lr " in line and "best" in line and "s left" in line for line in lines)
    assert all("adamw" in line for line in lines if "of adamw" in line)
    assert "adana-lrx2" in said.out


def test_the_time_left_counts_the_steps_of_runs_under_way(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(runs, "_share_made", lambda folder: 0.5)
    progress = runs.Progress()
    progress._began -= 30
    for name in "ab":
        progress.add(tmp_path / name, "runs")
    progress.ended(tmp_path / "a", None, None)
    assert "1 of 2 done, 30 s, about 10 s left" in capsys.readouterr().err
    progress.ended(tmp_path / "b", runs.NOT_STARTED, None)
    assert "b: not started (1 of 1 done" in capsys.readouterr().err


def test_more_seeds_are_compared_with_the_trials(tmp_path, capsys):
    progress = runs.Progress()
    for name, title, loss in (("trial", "runs", 2.0), ("seed", f"runs{runs.MORE_SEEDS}", 3.0)):
        progress.add(tmp_path / name, title)
        progress.ended(tmp_path / name, None, {"opt": "adana", "lr": 0.1, "final_loss": loss})
    assert "val loss 3.0000, best 2.0000 of trial" in capsys.readouterr().err


@pytest.mark.slow
def test_a_killed_sweep_goes_on_and_ends_with_the_same_rows(fixed, tmp_path):
    fixed = {**fixed, "iterations": 60, "ckpt_interval": 5}
    words = [
        "sweep",
        "--grid",
        "opt=adamw,adana",
        "--fixed",
        *(f"{key}={value}" for key, value in fixed.items()),
    ]
    command = [sys.executable, "-m", "danalab", *words, "--jobs", "1", "--out"]
    subprocess.run([*command, str(tmp_path / "calm")], check=True)
    sweep = subprocess.Popen([*command, str(tmp_path / "killed")])
    while not list((tmp_path / "killed").glob("runs/*/checkpoints/step-*/COMMIT")):
        assert sweep.poll() is None
        time.sleep(0.05)
    os.kill(sweep.pid, signal.SIGTERM)
    assert sweep.wait() != 0
    subprocess.run([*command, str(tmp_path / "killed")], check=True)
    calm, killed = (
        [json.loads(line) for line in (tmp_path / name / "ladder.jsonl").read_text().splitlines()]
        for name in ("calm", "killed")
    )
    assert [row["final_loss"] for row in killed] == [row["final_loss"] for row in calm]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--grid", "lr=0.1", "--fixed", "lr=0.2"], "--lr is both fixed and in the grid"),
        (["--grid", "optt=adamw"], "unknown key 'optt'"),
        (["--grid", "opt=adamw", "--at-once", "2"], "--at-once: is for --executor slurm"),
        (["--grid", "opt=adamw", "--jobs", "0"], "--jobs 0"),
        (
            ["--grid", "opt=adamw,adanna", "--fixed", "heads=2", "data=stdlib"],
            "run adanna: unknown optimizer 'adanna'",
        ),
        (["--grid", "opt=adamw", "--fixed", "data=datasets/smal"], "datasets/smal"),
        (["--collect"], "no sweep there"),
    ],
)
def test_what_no_sweep_can_be_made_of_is_refused(words, message, tmp_path, capsys):
    assert main(["sweep", *words, "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.count(message) == 1
    assert not (tmp_path / "out" / "runs").exists()
