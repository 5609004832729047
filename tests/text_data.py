"""A data set made of two texts, bytes as tokens, for tests that need some data and do not mind which."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from danalab.data import prepare

WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "dog",
    "ran",
    "to",
    "red",
    "house",
    "and",
    "then",
    "it",
    "was",
    "blue",
]


def prepare_texts(folder: Path, train: str, val: str) -> Path:
    """Write the two texts into `folder` and prepare them; returns the data set."""
    (folder / "train.txt").write_text(train)
    (folder / "val.txt").write_text(val)
    texts = {"inputs": [folder / "train.txt"], "val_inputs": [folder / "val.txt"]}
    return prepare("text", "bytes", folder / "set", **texts, progress=False)


def prepare_lines(
    folder: Path, train: int, val: int, *, words: Sequence[str] = WORDS, per_line: int = 8, end: str = ""
) -> Path:
    """`prepare_texts` of so many lines of words drawn at random, the same each time."""
    draw = random.Random(0)

    def lines(count: int) -> str:
        return "\n".join(" ".join(draw.choices(words, k=per_line)) + end for _ in range(count))

    return prepare_texts(folder, lines(train), lines(val))
