"""Sweeps of seconds."""

import random

import pytest

from text_data import prepare_texts

WORDS = ["the", "cat", "sat", "on", "a", "mat", "dog", "ran", "to", "red", "house", "and", "then", "it", "was", "blue"]


@pytest.fixture(scope="session")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What all runs of a tiny sweep have in common."""
    folder = tmp_path_factory.mktemp("data")
    draw = random.Random(0)

    def sentences(count: int) -> str:
        return "\n".join(" ".join(draw.choices(WORDS, k=8)) for _ in range(count))

    data = prepare_texts(folder, sentences(300), sentences(30))
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
        "tune_malloc": False,
    }
