"""The study guide: its code runs and prints what it shows, and the places that it names exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import build_guide as build

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide"
PAGES = sorted(GUIDE.rglob("*.md"))
PLACE = re.compile(r"`([\w./-]+\.(?:py|cpp|h))(?:::([\w.]+))?`")


def named(page: Path) -> str:
    return str(page.relative_to(GUIDE))


@pytest.mark.sample(5)
@pytest.mark.parametrize("page", [page for page in PAGES if "```python" in page.read_text()], ids=named)
def test_the_code_of_a_page_runs_and_prints_what_the_page_shows(page):
    for code, shown, printed in build.run(page):
        assert build.same(shown or "", printed), f"{code}\nprinted\n{printed}\ninstead of\n{shown}"


def test_outputs_differ_where_a_word_or_a_number_does():
    assert build.same("loss 0.50 at 10", "loss 0.51  at 10\n")
    assert not build.same("loss 0.50 at 10", "loss 0.56 at 10")
    assert not build.same("loss 0.50", "risk 0.50")
    assert not build.same("1 2", "1")
    assert not build.same("equal: True", "equal: False")


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_places_in_the_code_that_a_page_names_exist(page):
    for path, name in PLACE.findall(page.read_text()):
        roots = [ROOT / "src" / "danalab" / path, ROOT / path]
        file = next((root for root in roots if root.is_file()), None)
        assert file is not None, path
        assert not name or name in definitions(file), f"{path}::{name}"


@cache
def definitions(file: Path) -> set[str]:
    """Names of a module's functions, classes, methods and constants."""
    found = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
            found |= {
                f"{node.name}.{part.name}" for part in ast.walk(node) if isinstance(part, ast.FunctionDef)
            }
        for target in [*getattr(node, "targets", []), getattr(node, "target", None)]:
            if isinstance(target, ast.Name):
                found.add(target.id)
    return found


def test_every_page_is_on_a_map():
    maps = [GUIDE / "README.md", GUIDE / "pipeline" / "README.md"]
    linked = {(page.parent / target).resolve() for page in maps for target in links(page)}
    assert set(PAGES) - linked == {GUIDE / "README.md"}


def links(page: Path) -> list[str]:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return [target for target in re.findall(r"\]\(([^)#\s]+\.md)", text) if ":" not in target]
