"""Tables of results on the pages are those of the stored rows."""

from __future__ import annotations

import importlib

import pytest


@pytest.mark.parametrize("name", ["decay_law", "first_line", "horizon", "ladder_today", "nanogpt", "speed_page"])
def test_pages_show_the_stored_rows(name):
    script = importlib.import_module(f"bench.{name}")
    for file in script.PAGES:
        page = file.read_text(encoding="utf-8")
        assert script.fill(page) == page, f"run: python bench/{name}.py"
