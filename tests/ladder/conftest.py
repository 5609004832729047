"""Sweeps of seconds."""

import random
from pathlib import Path

import pytest

from danalab.data import prepare

WORDS = ["the", "cat", "sat", "on", "a", "mat", "dog", "ran", "to", "red", "house", "and", "then", "it", "was", "blue"]


@pytest.fixture(scope="session")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What all runs of a tiny sweep have in common."""
    folder = tmp_path_factory.mktemp("data")
    draw = random.Random(0)
    for split, sentences in (("train", 300), ("val", 30)):
        (folder / f"{split}.txt").write_text("\n".join(" ".join(draw.choices(WORDS, k=8)) for _ in range(sentences)))
    inputs: dict[str, list[Path]] = {"inputs": [folder / "train.txt"], "val_inputs": [folder / "val.txt"]}
    data = prepare("text", "bytes", folder / "set", **inputs, workers=1, progress=False)
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
