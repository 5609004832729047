import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
import yaml

from danalab.errors import UserError
from danalab.ladder.rows import pack, read_ladder
from danalab.sweep.estimate import estimate
from danalab.sweep.grid import expand, read_grid
from danalab.sweep.jobs import Job
from danalab.sweep.pool import run_jobs
from danalab.sweep.run import collect, find_rates, run_sweep
from danalab.train.run.folder import RunFolder
from danalab.train.run.metrics import read_rows
from ladder.planted import plant

TIMES = ("seconds", "tokens_per_second", "device_hours")


def without_times(rows):
    return [{key: value for key, value in row.items() if key not in (*TIMES, "settings")} for row in rows]


def test_a_sweep_makes_a_row_a_run_and_a_second_call_makes_none_anew(fixed, tmp_path):
    cells = expand({"opt": ["adamw", "adana"], "seed": [0, 1]}, fixed)
    first = run_sweep(tmp_path / "sweep", cells, executor="inline")
    assert [row["name"] for row in first.rows] == ["adamw-s0", "adamw-s1", "adana-s0", "adana-s1"]
    assert all(row["status"] == "finished" and row["final_loss"] > 0 for row in first.rows)
    assert not first.failures
    written = (tmp_path / "sweep" / "runs" / "adamw-s0" / "summary.json").stat().st_mtime_ns
    again = run_sweep(tmp_path / "sweep", cells, executor="inline")
    assert again.rows == first.rows
    assert (tmp_path / "sweep" / "runs" / "adamw-s0" / "summary.json").stat().st_mtime_ns == written
    rows = read_ladder(tmp_path / "sweep")
    assert read_rows(rows[0]["curve"])[0]["step"] == 1


@pytest.mark.slow
def test_rates_are_searched_until_the_best_lies_inside(fixed, tmp_path):
    cells = expand({"opt": ["adamw"]}, {**fixed, "lr": 0.004})
    found = find_rates(tmp_path, cells, executor="inline")
    losses = {row["lr"]: row["final_loss"] for row in found.rows}
    assert {0.002, 0.004, 0.008} <= set(losses)
    best = min(losses, key=losses.__getitem__)
    assert min(losses) < best < max(losses) or len(losses) == 9
    assert find_rates(tmp_path, cells, executor="inline").rows == found.rows


def test_rows_of_runs_that_a_later_call_does_not_ask_for_stay(fixed, tmp_path):
    run_sweep(tmp_path, expand({"opt": ["adamw"], "seed": [0, 1]}, fixed), executor="inline")
    found = run_sweep(tmp_path, expand({"opt": ["adamw"], "seed": [1, 2]}, fixed), executor="inline")
    assert [row["name"] for row in found.rows] == ["adamw-s0", "adamw-s1", "adamw-s2"]
    assert [row["name"] for row in read_ladder(tmp_path)] == [row["name"] for row in collect(tmp_path)]


def test_rows_stay_when_their_folders_or_the_record_of_the_sweep_are_gone(fixed, tmp_path, caplog):
    cells = expand({"opt": ["adamw"], "seed": [0, 1, 2]}, fixed)
    first = run_sweep(tmp_path, cells, executor="inline").rows
    shutil.rmtree(tmp_path / "runs" / "adamw-s0")
    (tmp_path / "runs" / "adamw-s1" / "config.json").write_text("{")
    assert collect(tmp_path) == first
    assert "2 of 3 runs cannot be read" in caplog.text
    assert "adamw-s0, adamw-s1" in caplog.text
    (tmp_path / "sweep.json").write_text('{"runs": {}}')
    assert collect(tmp_path) == first
    again = run_sweep(tmp_path, cells[:1], executor="inline").rows
    assert [row["name"] for row in again] == [row["name"] for row in first], "the run was made again, in its place"
    assert again[0]["seconds"] != first[0]["seconds"]
    assert again[0]["final_loss"] == first[0]["final_loss"]


def test_a_packed_sweep_goes_on_without_its_run_folders(fixed, tmp_path):
    cells = expand({"opt": ["adamw"], "seed": [0, 1, 2]}, fixed)
    first = run_sweep(tmp_path / "here", cells[:2], executor="inline").rows
    pack(read_ladder(tmp_path / "here"), tmp_path / "there")
    rows = run_sweep(tmp_path / "there", cells, executor="inline").rows
    assert [row["name"] for row in rows] == ["adamw-s0", "adamw-s1", "adamw-s2"]
    assert [row["final_loss"] for row in rows[:2]] == [row["final_loss"] for row in first]
    assert [path.name for path in (tmp_path / "there" / "runs").iterdir()] == ["adamw-s2"]
    longer = expand({"opt": ["adamw"], "seed": [0]}, {**fixed, "iterations": 20})
    run_sweep(tmp_path / "there", longer, executor="inline")
    assert (tmp_path / "there" / "runs" / "adamw-s0").is_dir(), "a row of other settings is another run"


@pytest.mark.parametrize("content", ["[]", "null", "3", '{"runs": []}', '{"runs": {"../x": {}}}', '{"runs": {"a": 1}}'])
def test_a_record_of_another_form_is_refused_by_name_and_no_row_is_lost(tmp_path, content):
    plant(tmp_path)
    before = (tmp_path / "ladder.jsonl").read_text()
    (tmp_path / "sweep.json").write_text(content)
    with pytest.raises(UserError, match=r"sweep\.json: malformed: "):
        collect(tmp_path)
    assert (tmp_path / "ladder.jsonl").read_text() == before


def test_a_damaged_file_of_rows_is_refused_with_its_line(tmp_path):
    (tmp_path / "sweep.json").write_text('{"runs": {}}')
    (tmp_path / "ladder.jsonl").write_text("[]\n")
    with pytest.raises(UserError, match=r"ladder\.jsonl:1: not a row of a ladder"):
        collect(tmp_path)
    assert (tmp_path / "ladder.jsonl").read_text() == "[]\n"


def test_paths_in_a_file_are_relative_to_the_file(tmp_path, monkeypatch):
    (tmp_path / "files" / "corpus").mkdir(parents=True)
    (tmp_path / "files" / "laws.yaml").write_text("learning_rate: []")
    file = tmp_path / "files" / "grid.yaml"
    file.write_text("{fixed: {rules: laws.yaml, data: ./corpus}, grid: {opt: [adamw]}}")
    monkeypatch.chdir(tmp_path)
    fixed, _, _ = read_grid(file.relative_to(tmp_path))
    assert fixed == {"rules": "files/laws.yaml", "data": "files/corpus"}
    file.write_text("fixed: {rules: files/laws.yaml, data: stdlib}")
    with pytest.raises(UserError, match=r"grid.yaml: rules is files/laws.yaml; .*files/files/laws.yaml does not exist"):
        read_grid(file)


def test_a_rules_file_that_moved_makes_no_other_run(tmp_path):
    folder = begun(tmp_path / "run", "finished", rules="/elsewhere/laws.yaml")
    assert Job(folder, {"opt": "adana", "rules": "bench/laws.yaml"}).is_finished()
    assert not Job(folder, {"opt": "adana", "rules": "bench/others.yaml"}).is_finished()


def test_an_optimizer_that_every_run_would_refuse_is_refused_by_the_plan(fixed, tmp_path):
    cells = expand({}, fixed, [{"opt": "adamw"}, {"opt": "muon", "momentum": 2.0}])
    with pytest.raises(UserError, match=r"run muon-momentum2: .*momentum"):
        estimate(cells, tmp_path)


@pytest.mark.slow
def test_runs_of_other_settings_are_not_taken_for_those_asked_for(fixed, tmp_path):
    cells = expand({"opt": ["adamw"], "seed": [0, 1]}, fixed)
    run_sweep(tmp_path, cells, executor="inline")
    record = (tmp_path / "sweep.json").read_text()
    longer = expand({"opt": ["adamw"], "seed": [0, 1]}, {**fixed, "iterations": 20})
    with pytest.raises(
        UserError, match=r"adamw-s0 \(and 1 more\) .*--iterations 10 there, 20 here; take another --out"
    ):
        run_sweep(tmp_path, longer, executor="inline")
    assert (tmp_path / "sweep.json").read_text() == record
    other_logs = expand({"opt": ["adamw"], "seed": [0, 1]}, {**fixed, "log_interval": 5})
    assert not run_sweep(tmp_path, other_logs, executor="inline").failures, "how it is carried out makes no other run"


def test_a_run_that_fails_is_listed_and_does_not_stop_the_rest(fixed, tmp_path):
    runs = [{"opt": "adamw", "vocab_size": 7}, {"opt": "adamw"}]
    found = run_sweep(tmp_path, expand({}, fixed, runs), executor="inline")
    (failure,) = found.failures
    assert "vocab" in failure.reason
    assert [row["status"] for row in found.rows] == ["finished"]


def test_a_run_that_crashes_is_listed_and_does_not_stop_the_rest(fixed, tmp_path, monkeypatch):
    from danalab.train import job

    run = job.run_training
    monkeypatch.setattr(job, "run_training", lambda config: run(config) if config.seed else None.crash)
    found = run_sweep(tmp_path, expand({"seed": [0, 1]}, fixed), executor="inline")
    assert [failure.reason for failure in found.failures] == [
        "AttributeError: 'NoneType' object has no attribute 'crash'"
    ]
    assert [row["name"] for row in found.rows] == ["s1"]


@pytest.mark.slow
def test_a_damaged_run_is_resumed_or_listed_and_does_not_stop_the_rest(fixed, tmp_path):
    cells = expand({"seed": [0, 1, 2]}, fixed)
    first = run_sweep(tmp_path, cells, executor="inline")
    (tmp_path / "runs" / "s0" / "summary.json").write_text("{}")
    (tmp_path / "runs" / "s1" / "config.json").write_text("[")
    again = run_sweep(tmp_path, cells, executor="inline")
    assert without_times(again.rows) == without_times(first.rows), "a damaged run keeps the row that it had"
    assert [failure.job.folder.name for failure in again.failures] == ["s1"]


@pytest.mark.slow
def test_an_optimizers_own_setting_may_be_in_the_grid(fixed, tmp_path):
    found = run_sweep(tmp_path, expand({"opt": ["muon"], "momentum": [0.8, 0.9]}, fixed), executor="inline")
    assert not found.failures
    assert len({row["final_loss"] for row in found.rows}) == 2


def test_a_setting_that_cannot_be_meant_is_refused_before_anything_runs(fixed, tmp_path):
    with pytest.raises(UserError, match="--keep-last 1"):
        run_sweep(tmp_path / "sweep", expand({"keep_last": [2, 1]}, fixed), executor="inline")
    assert not (tmp_path / "sweep").exists()


def start(tmp_path, fixed, opts, seeds):
    config = tmp_path / "grid.yaml"
    config.write_text(yaml.safe_dump({"fixed": fixed, "grid": {"opt": opts, "seed": seeds}}))
    command = [sys.executable, "-m", "danalab", "sweep", str(config), "--out", str(tmp_path / "sweep")]
    return subprocess.Popen(
        [*command, "--executor", "inline"], start_new_session=True, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"},  # sums are those of as many threads
    )  # fmt: skip


@pytest.mark.slow
def test_a_sweep_of_24_runs_killed_five_times_ends_with_the_rows_of_an_undisturbed_one(fixed, tmp_path):
    opts, seeds = ["adamw", "adana", "dana-star-mk4"], list(range(8))
    calm = run_sweep(tmp_path / "calm" / "sweep", expand({"opt": opts, "seed": seeds}, fixed), executor="inline")
    rows = tmp_path / "sweep" / "ladder.jsonl"
    for kill in range(5):
        process = start(tmp_path, fixed, opts, seeds)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None:
            if rows.is_file() and len(rows.read_text().splitlines()) >= 4 * (kill + 1):
                break
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert start(tmp_path, fixed, opts, seeds).wait() == 0
    assert without_times(read_ladder_relative(rows)) == without_times(calm.rows)


def read_ladder_relative(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def begun(folder, status, **config):
    """A run folder as the trainer leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    record = {"config": {"opt": "adana", "optimizer_settings": {"momentum": 0.9}, **config}}
    (folder / "config.json").write_text(json.dumps(record))
    (folder / "summary.json").write_text(json.dumps({"status": status, "step": 10}))
    return folder


def test_a_run_that_diverged_is_listed_and_not_made_again(tmp_path):
    job = Job(begun(tmp_path / "run", "nonfinite", lr=3.0), {"opt": "adana", "lr": 3})
    with pytest.raises(UserError, match=r"run .* diverged"):
        run_jobs([job], title="one")
    assert not (job.folder / "log.txt").exists()
    assert Job(job.folder, {"opt": "adana", "lr": 2}).has_diverged() is False, "other settings are another run"


def test_a_run_is_known_by_its_settings_however_they_were_said(tmp_path):
    folder = begun(tmp_path / "run", "finished", lr_multiplier=1.0, compile=False, warmup_steps=17)
    said = {"opt": "adana", "lr_multiplier": 1, "compile": False, "warmup_steps": None, "momentum": 0.9}
    assert Job(folder, said).is_finished()
    assert not Job(folder, {**said, "momentum": 0.8}).is_finished()


@pytest.mark.slow
def test_a_run_that_another_process_is_making_is_waited_for(tmp_path):
    folder = tmp_path / "run"
    job = Job(folder, {"opt": "adana"})

    def other():
        begun(folder, "finished")
        owned.__exit__(None, None, None)

    owned = RunFolder(folder).locked()
    owned.__enter__()
    threading.Timer(0.3, other).start()
    run_jobs([job], title="one")
    assert job.is_finished()
    assert not (folder / "log.txt").exists(), "no process was started"
