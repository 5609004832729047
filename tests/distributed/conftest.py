"""Data of a few words for whole runs."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from danalab.data import prepare


@pytest.fixture(scope="session")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared data set, bytes as tokens: 57,000 to train on, 2,900 for validation."""
    folder = tmp_path_factory.mktemp("words")
    draw = random.Random(0)
    for split, lines in (("train", 1400), ("val", 70)):
        text = "\n".join(" ".join(draw.choices(["one", "two", "three", "four"], k=9)) for _ in range(lines))
        (folder / f"{split}.txt").write_text(text)
    texts = {"inputs": [folder / "train.txt"], "val_inputs": [folder / "val.txt"]}
    return prepare("text", "bytes", folder / "set", **texts, workers=1, progress=False)
