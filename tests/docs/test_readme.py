"""README: short, every verb named, and each of its numbers that of a stored result; so, too, its pictures' numbers."""

from __future__ import annotations

import json
import re
from pathlib import Path

from build_claims import page_table
from build_figures import badges
from build_verbs import PAGE, groups, verbs

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_it_is_short_and_names_every_verb():
    assert len(TEXT.splitlines()) <= 110
    assert groups() in TEXT, "run: python docs/build_verbs.py"
    assert verbs() in PAGE.read_text(encoding="utf-8"), "run: python docs/build_verbs.py"


def test_each_quick_start_has_at_most_four_lines():
    begin = TEXT.split("## Three ways to begin")[1].split("\n## ")[0]
    blocks = re.findall(r"```\w*\n(.*?)```", begin, re.DOTALL)
    assert len(blocks) == 3
    assert all(len(block.strip().splitlines()) <= 4 for block in blocks)


def test_the_sentence_has_the_savings_of_demo_and_ladder():
    runs = json.loads((ROOT / "bench" / "results" / "demo" / "demo.json").read_text())["runs"]
    demo = [100 * run["compute_saved"] for run in runs if run["run"].startswith("adana-lr0.001")]
    by_the_laws = {row[0]: row[-1] for row in page_table("ladder.md", "today: saved")}
    adana, dana_muon = (by_the_laws[name].partition("%")[0].lstrip("+") for name in ("ADana", "DanaMuon"))
    words = " ".join(TEXT.split())
    assert f"**{min(demo):.0f} to {max(demo):.0f}% less compute**" in words
    assert f"**{adana}% less** by laws fitted to seven small sizes" in words
    assert f"(DanaMuon) **{dana_muon}% less**" in words


def test_badges_say_what_holds():
    for name, text in badges().items():
        assert (ROOT / "docs" / "figures" / "badges" / name).read_text(encoding="utf-8") == text
        assert f"docs/figures/badges/{name}" in TEXT


def test_pictures_exist_in_both_themes():
    shown = re.findall(r'(?:src|srcset)="([^"]+)"', TEXT)
    assert len(shown) == 6
    for light in (name for name in shown if "-light" in name):
        assert light.replace("-light", "-dark") in shown
    assert all((ROOT / name).is_file() for name in shown)
