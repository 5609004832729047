"""Every architecture by the command line: planned, trained, evaluated, sampled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from danalab.cli.app import main
from text_data import prepare_texts


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sentence = "the quick brown fox jumps over the lazy dog. "
    return prepare_texts(tmp_path_factory.mktemp("data"), sentence * 200, "a lazy fox. " * 60)


@pytest.mark.parametrize(
    ("arch", "more"),
    [
        ("gpt", []),
        ("base", ["--no-tied-head"]),
        ("llama", ["--n-kv-heads", "2"]),
        ("qwen3", ["--n-kv-heads", "1", "--no-attention-gate"]),
    ],
)
def test_a_tiny_run_trains_evaluates_and_speaks(capsys, tmp_path, data, arch, more):
    run = str(tmp_path / "run")
    sizes = ["--d-model", "32", "--n-layers", "1", "--n-heads", "4", "--seq-len", "32", "--batch-size", "4"]
    steps = ["--iterations", "3", "--eval-batches", "1", "--no-tune-malloc"]
    assert main(["train", "--arch", arch, *sizes, *more, *steps, "--data", str(data), "--run-dir", run]) == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["params"] == config["plan"]["exact_params"]
    capsys.readouterr()
    assert main(["eval", "--run", run, "--json"]) == 0
    assert 0 < json.loads(capsys.readouterr().out)["loss"] < 20
    assert main(["generate", "--run", run, "--prompt", "the", "--max-tokens", "5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"][0]["tokens"] <= 5


def test_plan_takes_grouped_queries(capsys):
    assert main(["plan", "--arch", "qwen3", "--heads", "4", "--n-kv-heads", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n_kv_heads"] == 2
    assert main(["plan", "--arch", "qwen3", "--heads", "4", "--n-kv-heads", "3"]) == 2
    assert "--n-kv-heads 3 does not divide the 4 heads" in capsys.readouterr().err
