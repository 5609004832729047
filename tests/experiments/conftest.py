"""Sweeps of seconds, and a stand-in for `danalab train`."""

import sys
from pathlib import Path

import pytest

from danalab.experiments import runs
from danalab.experiments.runs import Runner
from text_data import prepare_lines

TRAINER = Path(__file__).with_name("trainer.py")


@pytest.fixture(scope="session")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What all runs of a tiny sweep have in common."""
    folder = tmp_path_factory.mktemp("data")
    data = prepare_lines(folder, 300, 10)
    return {
        "data": str(data),
        "d_model": 16,
        "n_layers": 1,
        "n_heads": 2,
        "seq_len": 16,
        "batch_size": 4,
        "iterations": 10,
        "eval_interval": 2,
        "eval_batches": 1,
        "log_interval": 2,
        "ckpt_interval": 2,
        "lr": 1e-3,
    }


@pytest.fixture
def trainer(tmp_path, monkeypatch):
    """Runs take no time; returns a function with the names of those that were made."""
    made = tmp_path / "made"
    monkeypatch.setenv("MADE", str(made))
    monkeypatch.setattr(runs, "COMMAND", (sys.executable, str(TRAINER)))
    return lambda: made.read_text().split() if made.is_file() else []


def run_all(cells, folder, jobs=None):
    """(rows, failures) of these runs."""
    with Runner(folder, jobs) as runner:
        runner.train(cells)
        return runner.gather(), runner.failures
