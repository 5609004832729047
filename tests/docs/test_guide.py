"""The study guide: its code runs and prints what it shows, and the places that it names exist."""

from __future__ import annotations

import ast
import importlib.util
import re
from functools import cache
from pathlib import Path

import pytest

from _tooling.blocks import blocks

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide"
PAGES = sorted(GUIDE.rglob("*.md"))
PLACE = re.compile(r"`([\w./-]+\.(?:py|cpp|h))(?:::([\w.]+))?`")


def load(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


build = load(ROOT / "docs" / "build_guide.py")


def named(page: Path) -> str:
    return str(page.relative_to(GUIDE))


@pytest.fixture
def registries():
    """What a page registers is gone afterwards."""
    from danalab.chat.tasks import TASKS
    from danalab.optim.catalogue import OPTIMIZERS

    for registry in (TASKS, OPTIMIZERS):
        registry.names()  # loads the annexes, whose modules register only once
    before = [(registry, dict(registry._items)) for registry in (TASKS, OPTIMIZERS)]
    yield
    for registry, items in before:
        registry._items.clear()
        registry._items.update(items)


@pytest.mark.sample(5)
@pytest.mark.parametrize("page", [page for page in PAGES if "```python" in page.read_text()], ids=named)
@pytest.mark.usefixtures("registries")
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
            found |= {f"{node.name}.{part.name}" for part in ast.walk(node) if isinstance(part, ast.FunctionDef)}
        for target in [*getattr(node, "targets", []), getattr(node, "target", None)]:
            if isinstance(target, ast.Name):
                found.add(target.id)
    return found


@pytest.mark.parametrize("page", [page for page in PAGES if page != GUIDE / "README.md"], ids=named)
def test_a_chapter_opens_with_its_aim_its_time_and_its_cost(page):
    opening = page.read_text().split("\n\n")[1]
    assert opening.startswith("> **You will be able to** ")
    assert re.search(r"^> \*\*Time\*\* [^\n]*\d+ (to \d+ )?minutes.*\*\*Compute\*\* ", opening, re.MULTILINE)


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in ("README.md", "exercises.md")], ids=named)
def test_a_stated_time_is_that_of_one_reading(page):
    stated = re.search(r"\*\*Time\*\* (\d+) minutes\.", page.read_text())
    assert stated is not None
    assert abs(int(stated[1]) - reading_minutes(page)) <= 1.5


def reading_minutes(page: Path) -> float:
    """120 words a minute; a displayed formula 40 s, one in a line 8 s, a figure or block 30 s, a question 60 s."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    seconds = 30 * sum(block.action in ("python", "shell") for block in blocks(page))
    seconds += 30 * text.count("![") + 60 * len(re.findall(r"^\*\*\d+\. ", text, re.MULTILINE))
    text, displayed = re.subn(r"\$\$.*?\$\$", "", text, flags=re.DOTALL)
    text, formulas = re.subn(r"\$[^$]+\$", "", text)
    words = re.findall(r"\w[^\s|]*", re.sub(r"\]\([^)]*\)|<[^>]*>", "", text))
    return (seconds + 40 * displayed + 8 * formulas + 0.5 * len(words)) / 60


def test_every_page_is_on_a_map():
    maps = [GUIDE / "README.md", GUIDE / "pipeline" / "README.md"]
    linked = {(page.parent / target).resolve() for page in maps for target in links(page)}
    assert set(PAGES) - linked == {GUIDE / "README.md"}


def links(page: Path) -> list[str]:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return [target for target in re.findall(r"\]\(([^)#\s]+\.md)", text) if ":" not in target]


def test_published_numbers_that_are_second_hand_say_so():
    page = (GUIDE / "claims.md").read_text()
    rows = re.findall(r"^\| [^|]*(?:\d{4}\.\d{5}|track)[^|]*\|.*\|$", page, re.MULTILINE)
    assert len(rows) == 6
    assert all("abstract" in row or "second-hand" in row for row in rows)


@pytest.mark.parametrize("name", ["log_lion", "vision_transformer", "sorting_task"])
def test_a_solution_is_on_the_page(name):
    assert f"`examples/exercises/{name}.py`" in (GUIDE / "exercises.md").read_text()


NO_EXERCISE = {"README.md", "exercises.md", "questions.md", "resources.md"}


@pytest.mark.parametrize("page", [page for page in PAGES if named(page) not in NO_EXERCISE], ids=named)
def test_a_page_ends_with_an_exercise_and_links_to_what_others_wrote(page):
    text = page.read_text()
    end = text.rpartition("**Exercise.** ")[2]
    assert text.count("**Exercise.** ") == 1
    assert "<details><summary>Answer</summary>\n\n" in end
    assert re.search(r"\*\*Further:\*\* .*https://", end, re.DOTALL)
    known = (GUIDE / "resources.md").read_text()
    assert all(link in known for link in re.findall(r"\]\((https://[^)]+)\)", end.partition("**Further:**")[2]))


def test_the_hour_of_the_first_path_is_one(tmp_path):
    """Its pages and sections, without those that it names in quotes; its questions; and the guide's first page."""
    path = (GUIDE / "README.md").read_text().split("**1 hour")[1].split("**2 hours")[0]
    left_out = re.findall(r'"([^"]+)"', path)
    first, last = (int(number) for number in re.findall(r"Questions (\d+) to (\d+)", path)[0])
    kept = [(GUIDE / "README.md").read_text()]
    for target, anchor in re.findall(r"\]\(([^)#]+\.md)#?([^)]*)\)", path):
        parts = re.split(r"^(?=## |\*\*\d+\. )", (GUIDE / target).read_text(), flags=re.MULTILINE)
        for part in parts:
            title = part.splitlines()[0].lstrip("# ")
            if target == "questions.md":
                number = re.match(r"\*\*(\d+)\. ", part)
                wanted = number is not None and first <= int(number[1]) <= last
            else:
                wanted = not anchor or anchor == title.lower().replace(" ", "-")
            kept += [part] if wanted and title not in left_out else []
    page = tmp_path / "path.md"
    page.write_text("".join(kept))
    assert len(left_out) == 2
    assert 50 <= reading_minutes(page) <= 62
