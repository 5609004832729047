"""Data of a few words, and a run on it that nothing disturbs."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from danalab.train.folder import RunFolder
from danalab.train.job import run_training
from e2e.disturbed import config
from text_data import prepare_texts


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    draw = random.Random(0)

    def lines(count: int) -> str:
        return "\n".join(" ".join(draw.choices(["one", "two", "three", "four"], k=9)) for _ in range(count))

    return prepare_texts(folder, lines(800), lines(60))


@pytest.fixture(scope="session")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    outcome = run_training(config(data, run_dir))
    assert outcome.status == "finished"
    return RunFolder(run_dir)
