"""The pages on optimizers say what the code does: tables, blocks of Python, and lines of the examples."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import build_optimizers
import muon_options
from _tooling import reference
from danalab.cli.app import main
from danalab.errors import UserError
from danalab.optim import list_optimizers, optimizer_spec

ROOT = Path(__file__).parents[2]
OPTIMIZERS = ROOT / "docs" / "optimizers.md"
TRAINERS = ROOT / "docs" / "bring-your-own-trainer.md"


def test_the_facts_and_tables_are_those_of_the_registry():
    pages = build_optimizers.pages()
    assert build_optimizers.refresh(pages) == pages, "run: python docs/build_optimizers.py"


def test_options_around_muon_have_the_rows_of_the_stored_runs():
    page, rows = muon_options.PAGE.read_text(encoding="utf-8"), muon_options.read_rows()
    assert "<!-- muon-options: table -->" in page
    assert muon_options.fill(page, rows) == page, "run: python bench/muon_options.py"
    shown = {line[0] for line in muon_options.table(rows)[1]}
    assert shown == set(muon_options.OPTIONS)


def test_every_optimizer_has_an_equation_and_a_reason_of_its_own():
    text = "".join(build_optimizers.pages().values())
    for name in list_optimizers():
        match = re.search(rf"^##+ [^\n]*: `{name}`\n(.*?)^[^\n]*Source: ", text, re.DOTALL | re.MULTILINE)
        assert match, name
        _, equation, reason = match[1].split("```")
        assert equation.strip(), name
        assert len(reason.split()) > 5, name


def test_the_reference_has_every_setting_of_every_optimizer_with_its_default():
    text = reference.optimizers()
    for name in list_optimizers():
        section = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        settings = optimizer_spec(name).settings
        assert [row.split("`")[1] for row in section.splitlines() if row.startswith("| `")] == list(settings), name
        assert optimizer_spec(name).reference in section
    assert "| `clipsnr` | `2.0` |" in text


def test_settings_of_one_meaning_share_a_row_that_says_whose_they_are():
    rows = build_optimizers.meanings(["adana", "dana-mk4", "dana-star-mk4", "dana"])
    assert next(row for row in rows if row.startswith("| `clipsnr`")).endswith("(of `dana-mk4`, `dana-star-mk4`) |")
    assert any(row.startswith("| `alpha_offset` | `1.0`, `0.0` of `dana` |") for row in rows)
    assert not any(row.startswith("| `weight_decay`") for row in rows), "docs/optimizers.md explains it"


def test_an_optimizer_without_a_section_or_its_facts_is_named():
    pages = build_optimizers.pages()
    dana = build_optimizers.FAMILIES / "dana.md"
    without = {**pages, dana: re.sub(r"[^\n]*Source: .*", "", pages[dana], count=1)}
    with pytest.raises(UserError, match=r"Source: .* missing: adana; unknown: none"):
        build_optimizers.refresh(without)
    unknown = {**pages, dana: pages[dana] + "\n### ADana again: `adanna`\n"}
    with pytest.raises(UserError, match="section; missing: none; unknown: adanna"):
        build_optimizers.refresh(unknown)


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
