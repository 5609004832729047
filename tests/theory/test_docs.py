from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def page():
    return (DOCS / "theory.md").read_text()


@pytest.mark.slow
def test_the_python_of_the_page_runs_and_its_two_ways_agree(page, capsys):
    code = next(b for b in re.findall(r"```python\n(.*?)```", page, re.S) if "moment_recursion" in b)
    exec(compile(code, "docs/theory.md", "exec"), {})
    exact, equation, slope = map(float, capsys.readouterr().out.split())
    assert equation == pytest.approx(exact, rel=1e-3)
    assert 0.8 < slope < 2


def test_the_figures_of_the_page_are_there(page):
    figures = re.findall(r"!\[.*?\]\((.*?)\)", page)
    assert len(figures) == 11 + 1
    assert all((DOCS / figure).is_file() for figure in figures)
