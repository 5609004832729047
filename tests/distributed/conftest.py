"""Data of a few words for whole runs."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from text_data import prepare_texts


@pytest.fixture(scope="session")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared data set, bytes as tokens: 57,000 to train on, 2,900 for validation."""
    folder = tmp_path_factory.mktemp("words")
    draw = random.Random(0)

    def lines(count: int) -> str:
        return "\n".join(" ".join(draw.choices(["one", "two", "three", "four"], k=9)) for _ in range(count))

    return prepare_texts(folder, lines(1400), lines(70))
