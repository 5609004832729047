"""Data of a few words for whole runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from text_data import prepare_lines


@pytest.fixture(scope="session")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared data set, bytes as tokens: 57,000 to train on, 800 for validation."""
    folder = tmp_path_factory.mktemp("words")
    return prepare_lines(folder, 1400, 20, words=["one", "two", "three", "four"], per_line=9)
