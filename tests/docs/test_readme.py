"""README: short, with four doors, and each of its numbers that of a stored result."""

from __future__ import annotations

import re
from pathlib import Path

from build_figures import badges
from build_verbs import PAGE, verbs

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_page_of_commands_names_every_verb():
    assert verbs() in PAGE.read_text(encoding="utf-8"), "run: python docs/build_verbs.py"


def test_each_quick_start_has_at_most_four_lines():
    begin = TEXT.split("## Four ways to begin")[1].split("\n## ")[0]
    blocks = re.findall(r"```\w*\n(.*?)```", begin, re.DOTALL)
    assert len(blocks) == 3
    assert all(len(block.strip().splitlines()) <= 4 for block in blocks)


def test_badges_say_what_holds():
    for name, text in badges().items():
        assert (ROOT / "docs" / "figures" / "badges" / name).read_text(encoding="utf-8") == text
        assert f"docs/figures/badges/{name}" in TEXT


def test_pictures_exist_in_both_themes():
    shown = re.findall(r'(?:src|srcset)="([^"]+)"', TEXT)
    assert len(shown) == 4
    for light in (name for name in shown if "-light" in name):
        assert light.replace("-light", "-dark") in shown
    assert all((ROOT / name).is_file() for name in shown)
