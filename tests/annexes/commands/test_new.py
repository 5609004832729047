"""`danalab new`: files that work as they are written."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys

import pytest

from danalab.cli.app import main
from text_data import prepare_lines


def test_a_new_optimizer_passes_its_test_and_trains(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["new", "optimizer", "slow-signs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "files": ["slow_signs.py", "test_slow_signs.py"], "opt": "slow_signs.py:SlowSigns"
    }  # fmt: skip
    tests = [
        test for name, test in vars(importlib.import_module("test_slow_signs")).items() if name.startswith("test_")
    ]
    assert len(tests) == 5
    for test in tests:
        test()
    data = prepare_lines(tmp_path, 60, 10, words=["one", "two", "three"], per_line=9)
    size = "--d-model 16 --n-layers 1 --n-heads 1 --seq-len 8 --global-batch 2 --eval-interval 0 --eval-batches 1"
    run = f"train --opt slow_signs.py:SlowSigns --beta 0.8 --lr 0.01 --iterations 3 --run-dir run {size}"
    assert main([*run.split(), "--data", str(data), "--no-tune-malloc"]) == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "finished"


@pytest.mark.slow
def test_pytest_runs_the_test_of_a_new_optimizer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "optimizer", "slow-signs"]) == 0
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_slow_signs.py"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTEST_ADDOPTS": ""})
    assert "5 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["2fast"], "lower-case letters, digits and underscores are expected"),
        (["a.b"], "lower-case letters"),
        (["there"], "there.py: exists already"),
        ([], "NAME is needed"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.py").write_text("mine")
    assert main(["new", "optimizer", *words]) == 2
    line = capsys.readouterr().err
    assert message in line
    assert line.count("\n") == 1
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("there.py", "mine")]
