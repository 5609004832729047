"""The site: its navigation has every page, its reference every verb, and it builds without a warning or a network."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from _tooling import contents, reference
from _tooling.api_text import escaped
from required_tools import CHROMIUM

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_every_page_is_in_the_navigation_once():
    listed = names(contents.toctrees((DOCS / "index.md").read_text()))
    for name in listed:  # grows
        if name.endswith("/README"):
            inner = names(contents.below((DOCS / f"{name}.md").read_text()))
            listed += [(Path(name).parent / each).as_posix() for each in inner]
    pages = {page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.md")}
    listed.remove("reference/index")  # generated
    assert sorted(listed) == sorted(name for name in pages - {"index"} if not name.startswith("reference/"))


def names(toctrees: str) -> list[str]:
    return re.findall(r"^(?!:|```)(?:.* <)?([^\s<>]+)>?$", toctrees, re.MULTILINE)


def test_links_out_of_the_docs_lead_to_copies_or_downloads():
    assert contents.outside("[a](../CONTRIBUTING.md#b)", "a") == "[a](/reference/contributing.md#b)"
    assert contents.outside("[a](../notes/x.md)", "a") == "{download}`a </../notes/x.md>`"
    assert contents.outside("[a](../data.md#b)", "guide/a") == "[a](../data.md#b)"
    assert (
        contents.copied("[a](docs/a.md) [b](src/b.py) [c](#c)") == "[a](../a.md) [b](../../src/b.py) [c](#c)"
    )


def test_the_page_of_commands_and_the_reference_have_every_verb():
    page = (DOCS / "commands.md").read_text(encoding="utf-8")
    verbs = reference.verbs()
    assert {"train", "data", "serve"} <= {*verbs}
    assert [verb for verb in verbs if f"| `danalab {verb}` |" not in page] == []
    assert "## danalab data prepare" in reference.verb_page("data")


def test_docstrings_become_restructured_text():
    lines = escaped(["`a_` of *b*", "", "    x = |y|", "", "end"])
    assert lines == ["``a_`` of \\*b\\*", "", "::", "", "    x = |y|", "", "end"]


def test_a_picture_becomes_one_image_for_each_theme():
    text = '<picture>\n<source srcset="a-dark.svg">\n<img alt="loss" src="a-light.svg">\n</picture>'
    assert re.findall(r"a-\w+\.svg|only-\w+", contents.pictures(text)) == [
        "a-light.svg",
        "only-light",
        "a-dark.svg",
        "only-dark",
    ]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", str(DOCS), str(folder)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_site_builds_without_a_warning_and_needs_no_network(site):
    for page in site.rglob("*.html"):
        assert re.findall(r'(?:src="|<link[^>]* href="|url\()(https?:)?//', page.read_text()) == [], page


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_in_a_browser_pages_fit_a_phone_are_accessible_and_figures_move(site):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = chromium.new_context(viewport={"width": 390, "height": 844}, offline=True).new_page()
        for name in ("index", "optimizers/dana", "guide/claims", "guide/summary"):
            tab.goto(f"file://{site}/{name}.html")
            assert not tab.evaluate(
                "document.documentElement.scrollWidth > document.documentElement.clientWidth"
            ), name
            assert not tab.evaluate("[...document.images].some(i => i.complete && !i.naturalWidth)"), name
            assert [each["id"] for each in axe.run(tab).response["violations"]] == [], name
        figure = tab.locator("figure[data-figure=schedule]")
        before = figure.locator("p").inner_text()
        figure.locator("input").first.focus()
        tab.keyboard.press("ArrowLeft")
        assert figure.locator("p").inner_text() != before


NEWCOMERS = """
confidence interval, hyperparameter, quickstart, ablation, learning rate, warmup, weight decay, install, resume,
multi-GPU, SLURM, Hugging Face, export, fine-tune, tokenizer, dataset, GPU, CPU, out of memory, NaN
"""


@pytest.mark.parametrize("word", [word.strip() for word in NEWCOMERS.split(",")])
def test_a_word_that_newcomers_search_for_is_in_the_glossary_and_on_another_page(word):
    found = [
        page.name
        for page in DOCS.glob("*.md")
        if re.search(rf"\b{word}", page.read_text(encoding="utf-8"), re.I)
    ]
    assert "glossary.md" in found
    assert len(found) >= 2, word
