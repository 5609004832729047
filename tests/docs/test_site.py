"""The site: its navigation has every page, its reference every flag, its notebooks what the pages run."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import nbformat
import pytest

from _tooling import contents, notebooks, reference, run_page
from _tooling.api_text import escaped
from _tooling.blocks import blocks
from danalab.cli.app import flag_types
from danalab.train.config.train_config import TrainConfig
from required_tools import CHROMIUM

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FAMILIES = sorted(f"optimizers/{page.name}" for page in (DOCS / "optimizers").glob("*.md"))


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


@pytest.mark.parametrize(
    ("name", "page", "expected"),
    [
        ("a", "[rules](../CONTRIBUTING.md#rules)", "[rules](/reference/contributing.md#rules)"),
        ("guide/a", "[rules](../../CONTRIBUTING.md)", "[rules](/reference/contributing.md)"),
        ("a", "[table](../bench/results/x.md)", "{download}`table </../bench/results/x.md>`"),
        ("guide/a", "[data](../data.md#layouts)", "[data](../data.md#layouts)"),
    ],
)
def test_links_out_of_the_docs_lead_to_copies_or_downloads(name, page, expected):
    assert contents.outside(page, name) == expected


def test_the_contributing_page_keeps_its_links():
    assert contents.copied("[a](docs/a.md) [b](src/b.py) [c](#c)") == "[a](../a.md) [b](../../src/b.py) [c](#c)"


@pytest.mark.slow
def test_the_reference_has_every_flag_of_every_verb():
    for verb, kind in flag_types().items():
        page = reference.verb_page(verb.split()[0])
        if "flags of training runs" in page:
            page += reference.configuration()
        for field in dataclasses.fields(kind) if kind else ():
            if field.init and field.name != "optimizer_settings":
                name = field.name.rstrip("_")
                assert f"`--{name.replace('_', '-')}" in page or f"`{name.upper()}`" in page, (verb, name)


def test_the_configuration_page_has_every_key_and_its_default():
    page = reference.configuration()
    for field in dataclasses.fields(TrainConfig):
        assert page.count(f"- `--{field.name.replace('_', '-')}` (") == 1
    assert "- `--seq-len` (int; `null`)" in page
    assert "*Resume: the same run.*" in page


def test_flags_in_prose_are_code_and_marks_are_text():
    assert reference._prose("With --n-layers, `a_b` and a_b * c") == "With `--n-layers`, `a_b` and a\\_b \\* c"


def test_docstrings_become_restructured_text():
    assert escaped(["`a_` of *b*", "", "    x = |y|", "", "end"]) == [
        "``a_`` of \\*b\\*",
        "",
        "::",
        "",
        "    x = |y|",
        "",
        "end",
    ]


def test_a_notebook_has_the_text_and_runs_what_the_page_runs(tmp_path):
    page = tmp_path / "page.md"
    command = "```\ndanalab plan --heads 2\n```"
    page.write_text(
        f"# A title\n\n<!-- notebook -->\n\n```python\nx = 1\n```\n\nThen\n\n{command}\n\n```\ny = x\n```\n"
    )
    made = notebooks.notebook(page)
    nbformat.validate(made)
    assert [(cell["cell_type"], cell["source"]) for cell in made["cells"]] == [
        ("markdown", "# A title"),
        ("code", "x = 1"),
        ("markdown", "Then"),
        ("code", "%%bash\ndanalab plan --heads 2"),
        ("markdown", "```\ny = x\n```"),
    ]
    assert notebooks.tutorials(tmp_path) == [page]


def test_the_tutorials_are_notebooks_too():
    for page in notebooks.tutorials(DOCS):
        cells = [cell for cell in notebooks.notebook(page)["cells"] if cell["cell_type"] == "code"]
        assert len(cells) == sum(block.action in ("python", "shell") for block in blocks(page)) > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", notebooks.tutorials(DOCS), ids=lambda page: page.stem)
def test_a_notebook_runs_in_a_kernel(page, tmp_path, monkeypatch):
    from nbclient import NotebookClient

    monkeypatch.chdir(tmp_path)  # and its PATH comes back afterwards
    monkeypatch.setenv("PATH", os.environ["PATH"])
    for name, value in run_page.prepare(tmp_path).items():
        monkeypatch.setenv(name, value)
    made = notebooks.notebook(page)
    NotebookClient(made, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [cell["outputs"] for cell in made["cells"] if cell["cell_type"] == "code"]
    assert len(outputs) == sum(block.action in ("python", "shell") for block in blocks(page))
    assert any(outputs)


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
def test_in_a_browser_a_page_fits_a_phone_and_the_search_needs_no_server(site):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        context = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"]).new_context(
            viewport={"width": 390, "height": 844}, offline=True
        )
        tab = context.new_page()
        for name in ("index", "guide/pipeline/update", "theory", "optimizers/dana", "reference/cli/train"):
            tab.goto(f"file://{site}/{name}.html")
            wide = "[...document.querySelectorAll('div.math')].filter(d => d.scrollWidth > d.clientWidth)"
            cut = f"{wide}.filter(d => getComputedStyle(d).overflowX != 'auto').length"
            missing = "[...document.images].filter(i => i.complete && !i.naturalWidth).length"
            page_is_wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
            assert tab.evaluate(f"[{cut}, {missing}, {page_is_wide}]") == [0, 0, False], name
        tab.goto(f"file://{site}/ladder.html")
        hints = (
            "[...document.querySelectorAll('.table-wrapper.scrolls')].map(t => getComputedStyle(t, '::before').content)"
        )
        assert set(tab.evaluate(hints)) == {'"more columns: scroll \u2192"'}
        header = "[...document.querySelectorAll('.header-right > *')].map(e => e.getBoundingClientRect())"
        assert tab.evaluate(f"(([a, b]) => b.left - a.right >= 8)({header})")
        tab.goto(f"file://{site}/guide/summary.html")
        svg = "document.querySelector('figure.moving svg')"
        ends = f"[...{svg}.querySelectorAll('text')].map(t => t.getBBox().x + t.getBBox().width)"
        assert tab.evaluate(f"Math.max(...{ends}) <= {svg}.viewBox.baseVal.width")
        tab.goto(f"file://{site}/guide/pipeline/update.html")
        assert "Math" in tab.evaluate("getComputedStyle(document.querySelector('math')).fontFamily")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_in_a_browser_the_search_finds_the_right_page_first(site):
    from playwright.sync_api import sync_playwright

    wanted = {words: page for page, known in contents.SEARCHED.items() for words in known}
    assert len(wanted) >= 20
    with sync_playwright() as play:
        tab = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"]).new_context(offline=True).new_page()
        found = {}
        for words in wanted:
            tab.goto(f"file://{site}/search.html?q={quote(words)}")
            first = tab.locator("#search-results li a").first
            first.wait_for()
            found[words] = (first.get_attribute("href") or "").partition(".html")[0]
    assert found == wanted


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_at_1280_pixels_the_contents_are_open_and_formulas_fit(site):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = chromium.new_context(viewport={"width": 1280, "height": 900}, offline=True).new_page()
        for name in ("guide/summary", "guide/pipeline/matrices", "optimizers/muon", "theory"):
            tab.goto(f"file://{site}/{name}.html")
            right = tab.evaluate("document.querySelector('.toc-drawer').getBoundingClientRect().right")
            assert 0 < right <= 1280, name
            assert not tab.evaluate("document.documentElement.scrollWidth > 1280"), name
            wide = "[...document.querySelectorAll('div.math')].filter(d => d.scrollWidth > d.clientWidth).length"
            assert tab.evaluate(wide) == 0, name


def test_words_of_the_search_are_entries_below_the_title_of_one_page():
    page = contents.searched("<!-- notebook -->\n# Batch\n\ntext\n", "batch")
    assert page == "<!-- notebook -->\n# Batch\n\n```{index} ! critical batch\n```\n\ntext\n"
    assert contents.searched("# A\n", "none") == "# A\n"
    words = [words for known in contents.SEARCHED.values() for words in known]
    assert len(words) == len({*words})
    assert all((DOCS / f"{name}.md").is_file() for name in contents.SEARCHED)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_five_pages_are_accessible_and_their_moving_figures_follow_the_keyboard(site, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = chromium.new_context(color_scheme=scheme, offline=True).new_page()
        for name in ("index", "commands", "optimizers", "guide/summary", "guide/claims"):
            tab.goto(f"file://{site}/{name}.html")
            assert [each["id"] for each in axe.run(tab).response["violations"]] == [], name
        figure = tab.locator("figure[data-figure=power]")
        before = figure.locator("p").inner_text()
        figure.locator("input").first.focus()
        tab.keyboard.press("ArrowLeft")
        assert figure.locator("p").inner_text() != before


def luminance(color: str) -> float:
    digits = color.lstrip("#")
    digits = digits if len(digits) == 6 else "".join(2 * digit for digit in digits)
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_code_is_readable_on_its_light_ground():
    """Contrast of 4.5 (WCAG AA) for the colours of the style, or those that site.css has instead."""
    formatters = pytest.importorskip("pygments.formatters")
    styles = formatters.HtmlFormatter(style="friendly").get_style_defs(".highlight")
    colors = dict(re.findall(r"\.highlight \.(\w+) \{ color: (#\w+)", styles))
    (ground,) = re.findall(r"\.highlight \{ background: (#\w+)", styles)
    light = (DOCS / "_static" / "site.css").read_text().split("(prefers-color-scheme: light)")[1]
    for names, color in re.findall(r"\.highlight :is\(([^)]*)\) \{\s*color: (#\w+)", light):
        colors |= dict.fromkeys(re.findall(r"\w+", names), color)
    del colors["w"]  # white space
    ratios = {name: (luminance(ground) + 0.05) / (luminance(color) + 0.05) for name, color in colors.items()}
    assert not {name: round(ratio, 2) for name, ratio in ratios.items() if ratio < 4.5}


@pytest.mark.parametrize("page", sorted(str(page.relative_to(DOCS)) for page in DOCS.glob("*.md")) + FAMILIES)
def test_a_page_says_first_who_it_is_for(page):
    text = re.sub(r"<!-- .*? -->\n+", "", (DOCS / page).read_text(), flags=re.DOTALL)
    assert text.split("\n\n")[1].startswith("For those "), page


def test_a_picture_becomes_one_image_for_each_theme():
    text = '<picture>\n<source srcset="a-dark.svg">\n<img alt="loss" src="a-light.svg">\n</picture>'
    assert contents.pictures(text).split() == [
        "```{image}", "a-light.svg", ":alt:", "loss", ":class:", "only-light", "```",
        "```{image}", "a-dark.svg", ":alt:", "loss", ":class:", "only-dark", "```",
    ]  # fmt: skip
