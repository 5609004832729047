"""Small corpora for the data tests; nothing is written to the user's own cache folder."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

Maker = Callable[..., Path]

_TEXT = (
    "der alte Müller trägt 12 Säcke über die Brücke; the boat drifts, slowly — 水 flows past λ=3.5 houses\n"
)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A folder of 60 different text files of some hundred characters."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    draw = random.Random(0)
    for number in range(60):
        text = f"document {number}\n" + " ".join(draw.choices(_TEXT.split(" "), k=draw.randint(20, 120)))
        (folder / f"{number:02d}.txt").write_text(text, encoding="utf-8")
    return folder


def ids(n: int, length: int, seed: int, high: int = 500) -> np.ndarray:
    """Random ids, int64 [n, length]."""
    return np.random.default_rng(seed).integers(0, high, (n, length))


def write(path: Path, array: np.ndarray) -> Path:
    """Save by the suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".pt":
        torch.save(torch.from_numpy(array), path)
    else:
        np.save(path, array)
    return path


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    """Six files of all formats and types in two folders, 57 sequences of 33 tokens."""
    folder = tmp_path / "arrays"
    for number, (name, kind, n) in enumerate(
        [
            ("a.npy", "uint16", 10),
            ("b.npy", "int32", 7),
            ("deep/c.npy", "int64", 12),
            ("deep/d.npy", "uint16", 9),
            ("e.pt", "int64", 11),
            ("deep/er/f.pt", "int32", 8),
        ]
    ):
        write(folder / name, ids(n, 33, number).astype(kind))
    return folder
