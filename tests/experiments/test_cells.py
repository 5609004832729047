from pathlib import Path

import pytest

from danalab.errors import UserError
from danalab.experiments.cells import LONGEST_NAME, expand, name_of, parse_assignments, parse_fixed, read_grid


def test_a_grid_is_every_combination_with_readable_names():
    grid = parse_assignments(["opt=adamw,adana", "lr-multiplier=0.5,1", "seed=0,1"])
    cells = expand(grid, {"heads": 3})
    assert [cell.name for cell in cells][:3] == ["adamw-lrx0.5-s0", "adamw-lrx0.5-s1", "adamw-lrx1-s0"]
    assert len(cells) == 8
    assert cells[-1].settings == {"heads": 3, "opt": "adana", "lr_multiplier": 1, "seed": 1}


def test_values_are_read_as_what_they_are():
    assert parse_assignments(["lr=1e-3,2", "compile=true", "data=a/b", "warmup_steps=none"]) == {
        "lr": [1e-3, 2],
        "compile": [True],
        "data": ["a/b"],
        "warmup_steps": [None],
    }


def test_a_value_has_the_type_of_its_flag(tmp_path):
    said = parse_assignments(
        ["iterations=1e3", "scheduler=cos,none", "warmup_steps=none", "tokens-per-param=1e1"]
    )
    assert said == {
        "iterations": [1000], "scheduler": ["cos", "none"], "warmup_steps": [None], "tokens_per_param": [10.0],
    }  # fmt: skip
    assert isinstance(said["iterations"][0], int)
    file = tmp_path / "grid.yaml"
    file.write_text("fixed: {iterations: 1e3}\ngrid: {scheduler: [cos, none]}\n")
    fixed, grid, _ = read_grid(file)
    assert (fixed, grid) == ({"iterations": 1000}, {"scheduler": ["cos", "none"]})


def test_what_is_fixed_has_one_value_and_loses_nothing_of_it():
    said = parse_fixed(["seq-len=256", "data=a:0.7,b:0.3", "mlp-only-layers=0,2", "compile=true"])
    assert said == {"seq_len": 256, "data": "a:0.7,b:0.3", "mlp_only_layers": [0, 2], "compile": True}
    assert parse_fixed(["betas=0.8,0.95", "eps=1e-9"]) == {"betas": [0.8, 0.95], "eps": 1e-9}
    for words, what in ((["seq-len="], "no value"), (["lr=1", "lr=2"], "twice"), (["lr"], "KEY=VALUE")):
        with pytest.raises(UserError, match=what):
            parse_fixed(words)


def test_a_file_has_a_grid_a_list_and_what_is_common(tmp_path):
    file = tmp_path / "sweep.yaml"
    file.write_text(
        "fixed: {arch: enoki, lr: 1e-3}\ngrid: {opt: [adamw, adana], heads: 2}\nruns:\n  - {opt: muon, seed: 3}\n"
    )
    fixed, grid, runs = read_grid(file)
    assert fixed == {"arch": "enoki", "lr": 1e-3}
    assert [cell.name for cell in expand(grid, fixed, runs)] == ["adamw-h2", "adana-h2", "muon-s3"]


def test_an_optimizer_in_a_file_is_found_beside_the_grid(tmp_path):
    (tmp_path / "mine.py").write_text("")
    (tmp_path / "sweep.yaml").write_text("grid: {opt: [adamw, ./mine.py:Mine, ./none.py:Mine]}\n")
    _, grid, _ = read_grid(tmp_path / "sweep.yaml")
    assert grid["opt"] == ["adamw", f"{tmp_path / 'mine.py'}:Mine", "./none.py:Mine"]


def test_a_long_name_is_cut_and_stays_one_runs_own():
    names = {name_of({"opt": "adamw", "data": "x" * 150, "seed": seed}) for seed in range(3)}
    assert len(names) == 3
    assert all(len(name) <= LONGEST_NAME for name in names)


@pytest.mark.parametrize(
    ("grid", "fixed", "what"),
    [
        ({"optt": ["adamw"]}, {}, "unknown key 'optt'.*did you mean 'opt'"),
        ({"opt": []}, {}, "no value for --opt"),
        ({}, {"heads": 3}, "no run"),
        ({"seed": [0, 0]}, {}, "run s0 appears twice"),
        ({"lr_multiplier": [1, 1.0]}, {}, "run lrx1 appears twice"),
        ({"opt": ["adana", "ADana"]}, {}, "run ADana appears twice"),
        ({"arch": ["enoki", "Enoki"]}, {}, "run Enoki appears twice"),
        ({"opt": ["sf-sgd", "sf_sgd"]}, {}, "appears twice"),
        ({"opt": ["dana-star", "danastar"]}, {}, "appears twice"),
        ({"scheduler": ["cos-inf", "COS_INF"]}, {}, "appears twice"),
        ({"init": ["scaled-gpt", "ScaledGPT"]}, {}, "appears twice"),
        ({"dtype": ["float32", "fp32"]}, {}, "appears twice"),
        ({"distributed_backend": ["ddp", "nccl"]}, {}, "appears twice"),
        ({"data": ["words", "./words/"]}, {}, "appears twice"),
        ({"init_from": ["a/b", "a//b"]}, {}, "appears twice"),
        ({"seed": [None, 0]}, {}, "appears twice"),
        ({"seed": [0]}, {"seed": 1}, "--seed is both fixed and in the grid"),
        ({"run_dir": ["a"]}, {}, "unknown key 'run_dir'"),
        ({"lr_multiplier": [1, 2]}, {"lr": 1e-3}, "both --lr and --lr-multiplier"),
    ],
)
def test_a_grid_that_cannot_be_meant_is_refused(grid, fixed, what):
    with pytest.raises(UserError, match=what):
        expand(grid, fixed)


@pytest.mark.parametrize("word", ["opt", "=adamw", "opt=adamw opt=adana"])
def test_an_assignment_that_cannot_be_meant_is_refused(word):
    with pytest.raises(UserError, match="--grid"):
        parse_assignments(word.split())


def parse_settings(words, what):
    return parse_fixed(words), what


def test_a_setting_out_of_range_or_of_the_wrong_type_is_refused_before_anything_runs():
    for settings, what in (
        ({"heads": 0}, "--heads 0"),
        ({"heads": [3]}, "valid integer"),
        ({"lr": {"a": 1}}, "valid number"),
        ({"heads": "three"}, "three"),
        ({"compile": "maybe"}, "maybe"),
        parse_settings(["iterations=10.5"], "10.5"),
        parse_settings(["seq-len=64,128"], "64,128"),
    ):
        (cell,) = expand({}, {}, [settings])
        with pytest.raises(UserError, match=what):
            cell.config(Path("run"))


@pytest.mark.parametrize(
    "text",
    [
        "- a",
        "grid: [1]",
        "grids: {}",
        "runs: [1]",
        "a: [",
        "grid: {lr: 1e-3, lr: 2e-3}",
        "grid: {d-model: 32, d_model: 64}",
    ],
)
def test_a_file_of_another_form_is_refused_by_name(tmp_path, text):
    file = tmp_path / "sweep.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=r"sweep\.yaml"):
        read_grid(file)
