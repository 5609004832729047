"""Tables of results on the pages are those of the stored rows."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
SCRIPTS = sorted(file.stem for file in BENCH.glob("*.py") if "\nPAGES = " in file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", SCRIPTS)
def test_pages_show_the_stored_rows(name):
    script = importlib.import_module(f"bench.{name}")
    for file in script.PAGES:
        page = file.read_text(encoding="utf-8")
        assert script.fill(page) == page, f"run: python bench/{name}.py"
