"""Data of a few words, and a run on it that nothing disturbs."""

from __future__ import annotations

from pathlib import Path

import pytest

from danalab.train.run.folder import RunFolder
from danalab.train.trainer import run_training
from e2e.disturbed import config
from text_data import prepare_lines


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    return prepare_lines(folder, 800, 20, words=["one", "two", "three", "four"], per_line=9)


@pytest.fixture(scope="session")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    outcome = run_training(config(data, run_dir))
    assert outcome.status == "finished"
    return RunFolder(run_dir)
