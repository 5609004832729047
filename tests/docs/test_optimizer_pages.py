"""The pages on optimizers say what the code does: tables, blocks of Python, and lines of the examples."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from danalab.cli.app import main
from danalab.errors import UserError
from danalab.optim import list_optimizers, optimizer_spec

ROOT = Path(__file__).parents[2]
OPTIMIZERS = ROOT / "docs" / "optimizers.md"
TRAINERS = ROOT / "docs" / "bring-your-own-trainer.md"
BUILD = runpy.run_path(str(ROOT / "docs" / "build_optimizers.py"))
block, refresh = BUILD["block"], BUILD["refresh"]


def test_the_tables_are_those_of_the_registry():
    page = OPTIMIZERS.read_text()
    assert refresh(page) == page, "run: python docs/build_optimizers.py"


def test_every_optimizer_has_an_equation_and_a_reason_of_its_own():
    page = OPTIMIZERS.read_text()
    for name in list_optimizers():
        match = re.search(rf"^### [^\n]*: `{name}`\n(.*?)<!-- settings: {name} -->", page, re.DOTALL | re.MULTILINE)
        assert match, name
        _, equation, reason = match[1].split("```")
        assert equation.strip(), name
        assert len(reason.split()) > 5, name


def test_a_block_has_every_setting_with_its_default():
    text = block(optimizer_spec("dana-mk4"))
    assert "| `clipsnr` | `2.0` |" in text
    assert "| `kappa` | `0.85` |" in text
    assert "`stochastic_rounding`" in text
    assert optimizer_spec("dana-mk4").reference in text


def test_an_optimizer_without_a_section_is_named():
    page = OPTIMIZERS.read_text()
    with pytest.raises(UserError, match="no section for adana;"):
        refresh(page.replace("<!-- settings: adana -->", ""))
    with pytest.raises(UserError, match="no optimizer for adanna"):
        refresh(page + "\n<!-- settings: adanna -->\n<!-- end -->\n")


def python_blocks(page: Path) -> list[tuple[str, str]]:
    """(what stands before, code) of every block."""
    return re.findall(r"([^\n]*)\n```python\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.fixture
def registry_as_it_was():
    from danalab.optim.catalogue import OPTIMIZERS

    before = dict(OPTIMIZERS._items)
    yield
    OPTIMIZERS._items.clear()
    OPTIMIZERS._items.update(before)


@pytest.mark.slow
@pytest.mark.parametrize("page", [OPTIMIZERS, TRAINERS], ids=lambda page: page.name)
@pytest.mark.usefixtures("registry_as_it_was")
def test_the_python_of_a_page_runs_or_is_in_its_example(page):
    blocks = python_blocks(page)
    assert len(blocks) >= 2
    names: dict = {}
    for before, code in blocks:
        source = re.search(r"<!-- from (\S+) -->", before)
        if source is None:
            exec(compile(code, page.name, "exec"), names)
        else:
            lines = (ROOT / source[1]).read_text().splitlines()
            assert [line for line in code.splitlines() if line.strip() and line not in lines] == []


def test_the_commands_of_the_pages_are_understood(capsys):
    commands = re.findall(
        r"`danalab (optim [^`]*)`", re.sub(r"\s+", " ", OPTIMIZERS.read_text() + TRAINERS.read_text())
    )
    assert len(commands) >= 4
    for command in commands:
        assert main([*command.replace("NAME", "adana").split(), "--print-config"]) == 0
        capsys.readouterr()


def test_links_lead_somewhere():
    for page in (OPTIMIZERS, TRAINERS):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), target
