"""Data, runs and ladders that commit 498ec41 wrote open, are evaluated, resume and are collected."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from danalab.cli.app import main

FIXTURES = Path(__file__).parents[1] / "fixtures" / "runs_498ec41"
BASE = (
    "train --arch enoki --opt adana --d-model 16 --n-layers 1 --n-heads 2 --data data --seq-len 32 --batch-size 4 "
    "--acc-steps 2 --global-batch 8 --iterations 20 --lr 0.003 --seed 3 --eval-interval 10 --eval-batches 1 "
    "--log-interval 5 --ckpt-interval 10 --keep-last 2 --dtype float32 --run-dir base --no-tune-malloc"
)
SFT = (
    "sft --run base --data conv.jsonl --run-dir sft --iterations 12 --global-batch 8 --batch-size 4 "
    "--eval-interval 6 --log-interval 3 --keep-last 2 --no-tune-malloc"
)
LADDER = "ladder lad.yaml --out lad --executor inline"
REACHED = ("train/loss", "val/loss", "grad_norm", "lr", "tokens", "flops")


@pytest.fixture(autouse=True)
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fixtures in the working folder, as they were written."""
    shutil.copytree(FIXTURES, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


def rows_of(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def check_reached(name: str) -> None:
    """The rows and the summary are those that the commit reached."""
    rows, expected = rows_of(Path(name, "metrics.jsonl")), rows_of(FIXTURES / name / "reached.jsonl")
    assert [row["step"] for row in rows] == [row["step"] for row in expected]
    for row, then in zip(rows, expected, strict=True):
        assert {key: row.get(key) for key in REACHED} == pytest.approx({k: then.get(k) for k in REACHED}, abs=1e-4)
    summary, then = (json.loads(Path(name, file).read_text()) for file in ("summary.json", "reached.json"))
    assert (summary["status"], summary["step"]) == ("finished", then["step"])
    assert summary["val/loss"] == pytest.approx(then["val/loss"], abs=1e-4)


@pytest.mark.parametrize(("name", "command"), [("base", BASE), ("sft", SFT)])
def test_a_run_resumes_by_its_command_to_the_losses_that_it_reached(name, command):
    assert main(command.split()) == 0
    check_reached(name)


def test_a_run_is_evaluated(capsys):
    assert main(["eval", "base", "--json"]) == 0
    at_10 = next(row for row in rows_of(FIXTURES / "base" / "reached.jsonl") if row["step"] == 10)
    assert json.loads(capsys.readouterr().out)["loss"] == pytest.approx(at_10["val/loss"], abs=0.05)


def test_the_data_set_is_valid():
    assert main(["data", "validate", "data"]) == 0


def test_a_ladder_is_complete_and_its_rows_are_collected(capsys):
    before = rows_of(Path("lad", "ladder.jsonl"))
    for arguments in (["--collect"], []):  # without: nothing is left to run
        assert main([*LADDER.split(), *arguments]) == 0
        rows = rows_of(Path("lad", "ladder.jsonl"))
        keys = ("name", "status", "opt", "lr", "final_loss", "flops", "total_params")
        assert [{key: row[key] for key in keys} for row in rows] == [{key: row[key] for key in keys} for row in before]
    assert "step 1/" not in capsys.readouterr().err
