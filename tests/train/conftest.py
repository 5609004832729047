"""A tiny data set, and a configuration of seconds that trains on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from danalab.train.config.train_config import TrainConfig
from text_data import prepare_lines


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    return prepare_lines(folder, 400, 12, end=".")


@pytest.fixture(scope="session")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared data set, bytes as tokens: 57,000 to train on, 800 for validation."""
    return prepare_lines(
        tmp_path_factory.mktemp("words"), 1400, 20, words=["one", "two", "three", "four"], per_line=9
    )


@pytest.fixture
def tiny(data: Path, tmp_path: Path) -> Callable[..., TrainConfig]:
    """Make a configuration: 20 steps of a 2-layer model of width 32; what is given wins."""

    def make(**given: object) -> TrainConfig:
        settings: dict[str, object] = {
            "data": str(data),
            "d_model": 32,
            "n_layers": 2,
            "n_heads": 2,
            "seq_len": 16,
            "batch_size": 4,
            "iterations": 20,
            "lr": 3e-3,
            "eval_interval": 10,
            "eval_batches": 2,
            "log_interval": 2,
            "ckpt_interval": 5,
            "run_dir": tmp_path / "run",
        }
        return TrainConfig(**{**settings, **given})  # type: ignore[arg-type]

    return make
