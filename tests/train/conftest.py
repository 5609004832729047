"""A tiny data set, and a configuration of seconds that trains on it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from danalab.train.config import TrainConfig
from text_data import prepare_texts

WORDS = ["the", "cat", "sat", "on", "a", "mat", "dog", "ran", "to", "red", "house", "and", "then", "it", "was", "blue"]


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    draw = random.Random(0)

    def sentences(count: int) -> str:
        return "\n".join(" ".join(draw.choices(WORDS, k=8)) + "." for _ in range(count))

    return prepare_texts(folder, sentences(400), sentences(40))


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
            "tune_malloc": False,
        }
        return TrainConfig(**{**settings, **given})  # type: ignore[arg-type]

    return make
