"""The GPU day: what fits is run by priority, goes on where it was stopped, and a failure costs only itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import build_gpu
from danalab_bench import gpu_day
from danalab_bench.gpu_day import BEST, OPTS, Day, Job
from danalab_bench.gpu_runs import OutOfTimeError

ROOT = Path(__file__).parents[2]
JOB = Job("adana", 192, 4, 3, 64, 1.0, 1.0, (0, 1))


def row(job: Job, seed: int, loss: float | None = 2.0, rate: float = 1e6) -> dict:
    named = {"opt": job.opt, "horizon": job.horizon, "rate": job.rate, "seed": seed, "size": job.size}
    return {**named, "params": job.plan.total_params, "loss": loss, "excess": loss and loss - 1.0,
            "tokens_per_second": rate, "flops_per_token": job.plan.flops_per_token}  # fmt: skip


def day(folder: Path, minutes: float = 8.7, part: str = "ladder") -> Day:
    return Day(part, folder, "cuda", False, minutes, lambda line: None)


class Processes:
    """In place of the pool: the outcomes of calls in this process, by the way that they ask for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, outcomes: dict[str, object], speed: float = 1e6):
        self.trained: list[tuple[Job, str]] = []
        self.outcomes, self.speed = outcomes, speed
        monkeypatch.setattr(gpu_day.Pool, "each", lambda pool, calls: [self.answer(*call) for call in calls])

    def answer(self, function, job: Job, device: str, ways, *more):
        if function is gpu_day.time_ways:
            rates = {"eager": self.speed / 2, "graph": self.speed}
            return {way: {"tokens_per_second": rates.get(way, 1.0)} for way in ways}
        self.trained.append((job, ways))
        outcome = self.outcomes.get(ways)
        return outcome or [row(job, seed, 2.0 + 0.1 * job.rate) for seed in job.seeds]


def test_only_what_fits_is_run_in_order_and_the_rest_later(tmp_path, monkeypatch):
    processes = Processes(monkeypatch, {})
    jobs = [JOB, replace(JOB, horizon=100.0), replace(JOB, opt="muon")]
    first = day(tmp_path, minutes=4.0)  # 90 s a job of f = 1 at a million tokens per second
    first.run(jobs)
    assert [job for job, _ in processes.trained] == [jobs[0], jobs[2]]
    kept = json.loads((tmp_path / "ladder.json").read_text())
    assert kept["left_out"] == [str(jobs[1])]
    assert len(kept["rows"]) == 4
    assert kept["trials"]["2.2M"]["way"] == "graph"
    processes.trained.clear()
    day(tmp_path, minutes=1000.0).run(jobs)  # another command: only what is left
    assert [job for job, _ in processes.trained] == [jobs[1]]


def test_a_way_that_fails_is_left_for_the_plain_one_and_a_job_that_is_late_is_not_run_again(tmp_path, monkeypatch):
    broken = Processes(monkeypatch, {"graph": RuntimeError("illegal access")})
    day(tmp_path, 60).run([JOB, replace(JOB, opt="muon")])
    assert [(job.opt, way) for job, way in broken.trained] == [
        ("adana", "graph"),
        ("adana", "eager"),
        ("muon", "eager"),
    ]
    kept = json.loads((tmp_path / "ladder.json").read_text())
    assert len(kept["rows"]) == 4
    assert kept["errors"] == [f"{JOB}, graph: RuntimeError: illegal access"]
    late = Processes(monkeypatch, {"graph": OutOfTimeError("it would take 900 s")})
    day(tmp_path / "late", 60).run([JOB])
    assert [way for _, way in late.trained] == ["graph"]
    assert "900 s" in json.loads((tmp_path / "late" / "ladder.json").read_text())["left_out"][0]


def test_the_large_size_begins_with_the_better_rate_of_the_small_one(tmp_path):
    one = day(tmp_path)
    large = replace(JOB, d_model=448, n_layers=8, n_heads=7, rate=BEST)
    assert one.resolved(large).rate == 1.0
    one.result["rows"] = [row(JOB, 0, None), row(JOB, 1, 1.0), *(row(replace(JOB, rate=0.5), s, 3.0) for s in (0, 1))]
    assert one.resolved(large).rate == 0.5, "a model that diverged counts"


def test_the_time_of_a_job_follows_what_was_measured_at_its_size_else_flops(tmp_path):
    one = day(tmp_path)
    assumed = one.seconds(JOB)
    one.result["rows"] = [row(JOB, 0, rate=4e6)]
    assert one.seconds(JOB) == pytest.approx(gpu_day.START_SECONDS + JOB.tokens / 4e6) != assumed
    large = replace(JOB, d_model=448, n_layers=8, n_heads=7)
    ratio = large.plan.flops_per_token / JOB.plan.flops_per_token
    assert one.rate(large) == pytest.approx(4e6 / ratio)
    section = {"train": {"rows": [{"arch": "enoki", "heads": 12, "vocab_size": 50304, "seq_len": 2048}]}}
    section["train"]["rows"][0]["tokens_per_second"] = 3e5
    (tmp_path / "check.json").write_text(json.dumps({"sections": section}))
    fast = day(tmp_path).rate(JOB)
    section["train"]["rows"][0]["tokens_per_second"] = 6e5
    (tmp_path / "check.json").write_text(json.dumps({"sections": section}))
    assert day(tmp_path).rate(JOB) == pytest.approx(2 * fast)


def test_plans_hold_both_rates_four_optimizers_and_20_seeds():
    jobs = gpu_day.horizon_jobs(False)
    assert {job.opt for job in jobs[: len(OPTS)]} == set(OPTS)
    assert all(len(job.seeds) == 20 for job in jobs)
    assert {job.size for job in jobs} == {"0.34M", "1.1M", "4.5M"}
    ladder = gpu_day.ladder_jobs(False)
    assert {job.size for job in ladder} == {"2.2M", "20M"}
    assert {(job.opt, job.rate) for job in ladder if job.size == "2.2M"} == {
        (o, r) for o in OPTS for r in gpu_day.RATES[o]
    }


def test_without_a_gpu_one_line_says_so_and_an_estimate_needs_none(tmp_path, capsys):
    assert gpu_day.main(["ladder", str(tmp_path), "--device", "cpu", "--small", "--estimate"]) == 0
    assert "20 jobs left" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_the_page_says_what_was_not_run_and_shows_what_was(tmp_path, monkeypatch):
    monkeypatch.setattr(build_gpu, "RESAMPLES", 10)
    page = build_gpu.PAGE.read_text(encoding="utf-8")
    assert build_gpu.refresh(page) == page, "run: python docs/build_gpu.py"
    one, jobs = day(tmp_path, part="horizon"), []
    for opt, power in (("adamw", 0.3), ("adana", 0.36)):
        jobs += [
            replace(JOB, opt=opt, horizon=f, rate=r, seeds=(0, 1, 2)) for f in (1.0, 4.0, 16.0) for r in (1.0, 0.5)
        ]
        for job in jobs[-6:]:
            scatter = [2.0 + job.horizon**-power + 0.001 * seed + (job.rate < 1) for seed in job.seeds]
            one.result["rows"] += [row(job, seed, loss) for seed, loss in zip(job.seeds, scatter, strict=True)]
    one.keep(machine={"gpu": "Some GPU", "torch": "2"}, left_out=["a job"])
    made = build_gpu.refresh(page, tmp_path)
    assert made.count("Not run yet.") == 3
    assert "Some GPU" in made
    assert "| 2.2M | 16 | adana | 1.3696 | 3 | -0.06" in made
    assert "| adana | 1.2" in made
    assert "Left out: a job." in made
    assert build_gpu.refresh(made, tmp_path) == made


def test_results_of_a_dry_run_are_not_mixed_with_others(tmp_path, capsys):
    day(tmp_path).keep()
    before = (tmp_path / "ladder.json").read_bytes()
    assert gpu_day.main(["ladder", str(tmp_path), "--device", "cpu", "--small"]) == 2
    assert "has results of cuda, not of cpu, a dry run" in capsys.readouterr().err
    assert (tmp_path / "ladder.json").read_bytes() == before


def test_tests_that_passed_and_sections_that_ended_are_not_run_again(tmp_path, monkeypatch):
    measured = []

    def measure(limits, device, small, say, keep):
        measured.append([name for name, _ in limits])
        keep({"sections": {name: {"ended": "cut off" if name == "train" else "done"} for name, _ in limits}})

    monkeypatch.setattr(gpu_day.gpu_check, "measure", measure)
    monkeypatch.setattr(Day, "test", lambda day: measured.append("tests") or day.keep(code=len(measured) == 1))
    for _ in range(3):
        day(tmp_path, part="check").measure()
    assert measured == ["tests", ["optim", "train", "checkpoint"], "tests", ["train"], ["train"]]
    assert list(json.loads((tmp_path / "check.json").read_text())["sections"]) == ["optim", "train", "checkpoint"]


def test_another_size_is_not_tried_in_the_last_minute(tmp_path, monkeypatch):
    processes = Processes(monkeypatch, {}, speed=1e9)
    small = replace(JOB, d_model=64, n_heads=4)
    one = day(tmp_path, minutes=2.0)
    one.result["rows"] = [row(JOB, 0, rate=1e12)]
    one.deadline = time.time() + 50
    one.run([small])
    assert not processes.trained
    assert one.result["left_out"] == [str(small)]


def script(tmp_path: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    tree = tmp_path / "tree"
    (tree / "scripts").mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "scripts" / "gpu_day.sh", tree / "scripts")
    command = [tree / "scripts" / "gpu_day.sh", *arguments]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)


def test_the_script_begins_in_out_with_the_results_of_the_tree_and_names_a_missing_package(tmp_path):
    python, out = tmp_path / "python", tmp_path / "out"
    python.write_text("#!/bin/sh\n[ $1 = -c ] && exit $MISSING; echo $@ > $OUT/ran\n")
    python.chmod(0o755)
    out.mkdir()
    (tmp_path / "tree" / "gpu-day").mkdir(parents=True)
    (tmp_path / "tree" / "gpu-day" / "check.json").write_text("{}")
    known = {"PYTHON": str(python), "OUT": str(out)}
    assert script(tmp_path, "ladder", "--small", **known, MISSING="0").returncode == 0
    assert (out / "check.json").read_text() == "{}"
    assert (out / "ran").read_text() == "-m danalab_bench.gpu_day ladder --small\n"
    python.write_text("#!/bin/sh\necho Traceback; echo ModuleNotFoundError: No module named pydantic; exit 1\n")
    failed = script(tmp_path, "ladder", **known)
    assert failed.returncode == 2
    assert failed.stderr.startswith("gpu-day: ModuleNotFoundError: No module named pydantic; packages that")


@pytest.mark.slow
def test_a_dry_run_of_all_four_from_a_bare_folder_fills_the_page(tmp_path):
    """The code, files and page of the day at a hundredth of the size."""
    bare, out = tmp_path / "tree", tmp_path / "out"
    for name in ("src", "bench/danalab_bench", "scripts", "tests"):
        shutil.copytree(ROOT / name, bare / name, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": "", "LIMIT": "1500"}
    start = sum(os.times()[:4])
    for part in gpu_day.PARTS:
        command = [bare / "scripts" / "gpu_day.sh", part, out, "--device", "cpu", "--small", "--minutes", "24"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=1600)
        assert done.returncode == 0, done.stdout + done.stderr
        result = json.loads((out / f"{part}.json").read_text())
        assert result["small"]
        assert not result.get("errors"), result["errors"]
        assert result["rows"] or all(each["ended"] == "done" and each["rows"] for each in result["sections"].values())
    assert sum(os.times()[:4]) - start < 600, "ten minutes of a processor, those of child processes included"
    made = build_gpu.refresh(build_gpu.PAGE.read_text(encoding="utf-8"), out)
    assert "Not run yet" not in made
    assert made.count("a dry run, whose numbers mean nothing") == 4
    assert "exponent p" in made
