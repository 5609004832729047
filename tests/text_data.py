"""A data set made of two texts, bytes as tokens, for tests that need some data and do not mind which."""

from __future__ import annotations

from pathlib import Path

from danalab.data import prepare


def prepare_texts(folder: Path, train: str, val: str) -> Path:
    """Write the two texts into `folder` and prepare them; returns the data set."""
    (folder / "train.txt").write_text(train)
    (folder / "val.txt").write_text(val)
    texts = {"inputs": [folder / "train.txt"], "val_inputs": [folder / "val.txt"]}
    return prepare("text", "bytes", folder / "set", **texts, workers=1, progress=False)
