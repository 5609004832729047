"""The tables of GPUs and of parallel modes are those of the estimate and of the stored measurement."""

from __future__ import annotations

import re

import build_memory


def test_the_tables_are_what_the_script_writes(monkeypatch):
    monkeypatch.setattr(build_memory, "SIZES", build_memory.SIZES[2:3])  # one of them: each takes a second
    page = "".join(page.read_text(encoding="utf-8") for page in build_memory.PAGES)
    assert all(row in page for row in build_memory.gpu_rows()), "run: python docs/build_memory.py"
    assert all(row in page for row in build_memory.mode_rows()), "run: python docs/build_memory.py"
    assert re.findall("<!-- table: (.*?) -->", page) == ["gpus", "modes"]


def test_a_size_that_does_not_fit_is_told_apart_from_a_fault():
    assert build_memory.planned("--heads 100 --batch-size 1 --global-batch 1 --gpu l4 --fit-memory") == {}
