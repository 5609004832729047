"""The sweeps and ladders that come with the benchmarks are ones that the engine takes."""

import json
from pathlib import Path

import pytest

from danalab.cli.app import main
from danalab.experiments.cells import expand, read_grid
from danalab.experiments.ladder import read_plan
from danalab.experiments.runs import train_flags
from danalab.train.run.folder import RunFolder

BENCH = Path(__file__).parents[2] / "bench"
SWEEPS = sorted(BENCH.glob("*_sweep.yaml"))


@pytest.mark.sample(1)
@pytest.mark.parametrize("file", SWEEPS, ids=lambda file: file.stem)
def test_a_sweep_file_is_one_that_runs(file, fixed, tmp_path):
    settings, grid, runs = read_grid(file)
    for cell in expand(grid, settings, runs):
        cell.config(tmp_path)
    varied = [key for key in ("kappa", "clipsnr", "gamma3") if key in grid]
    assert varied
    # Its first and last corners for real, on a model and data of nothing: the flags of a run, in this process.
    tiny = {**fixed, "iterations": 4, "eval_interval": 2}
    corners = [{"opt": grid["opt"][0], **{key: grid[key][end] for key in varied}} for end in (0, -1)]
    losses = set()
    for cell, corner in zip(expand({}, tiny, corners), corners, strict=True):
        assert main(["train", *train_flags(tmp_path / cell.name, cell.settings)]) == 0
        run = RunFolder(tmp_path / cell.name)
        made = run.read_config()["config"]
        assert {**made, **made["optimizer_settings"]}.items() >= corner.items()
        losses.add(run.read_summary()["val/loss"])
    assert len(losses) == 2


LADDERS = [file for file in sorted(BENCH.glob("*.yaml")) if "\nopts: " in file.read_text(encoding="utf-8")]


def test_every_ladder_file_is_read():
    for file in LADDERS:
        assert list(read_plan(file).rungs())


@pytest.mark.sample(1)
@pytest.mark.parametrize("file", LADDERS, ids=lambda file: file.stem)
def test_a_ladder_file_is_one_that_runs(file, tmp_path):
    plan = read_plan(file)
    for rung in plan.rungs():
        for cells in plan.planned(rung).values():
            for cell in cells:
                cell.config(tmp_path)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("name", "largest"), [("ladder_gpu", 2.6e9), ("ladder_gpu_qwen3", 2.1e9)])
def test_the_ladders_for_gpus_are_estimated_before_their_data_exist(
    name, largest, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("DATASETS_DIR", str(tmp_path))
    file = str(BENCH / f"{name}.yaml")
    assert main(["ladder", file, "--dry-run", "--gpu", "h100", "--opts", "adamw", "adana", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    params = [run["params"] for run in found["runs"]]
    assert 4.5e7 < min(params) < 5.2e7
    assert max(params) == pytest.approx(largest, rel=0.02)
