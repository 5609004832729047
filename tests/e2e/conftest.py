"""Data of a few words, and a run on it that nothing disturbs."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from danalab.data import prepare
from danalab.train.folder import RunFolder
from danalab.train.job import run_training
from e2e.disturbed import config


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    draw = random.Random(0)
    for split, lines in (("train", 800), ("val", 60)):
        text = "\n".join(" ".join(draw.choices(["one", "two", "three", "four"], k=9)) for _ in range(lines))
        (folder / f"{split}.txt").write_text(text)
    texts = {"inputs": [folder / "train.txt"], "val_inputs": [folder / "val.txt"]}
    return prepare("text", "bytes", folder / "set", **texts, workers=1, progress=False)


@pytest.fixture(scope="session")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    outcome = run_training(config(data, run_dir))
    assert outcome.status == "finished"
    return RunFolder(run_dir)
