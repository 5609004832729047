"""Small corpora for the data tests; nothing is written to the user's own cache folder."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

_TEXT = "der alte Müller trägt 12 Säcke über die Brücke; the boat drifts, slowly — 水 flows past λ=3.5 houses\n"


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
