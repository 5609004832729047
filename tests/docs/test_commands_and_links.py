"""Commands on the pages have verbs and flags that exist, and links lead somewhere."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from _tooling.reference import help_of

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
PAGES += [
    page for page in sorted(DOCS.rglob("*.md")) if page.relative_to(DOCS).parts[0] != "reference"
]  # generated
HELP = cache(help_of)
ELSEWHERE = {"--help", "--help-all", "--config", "--debug"}
ELSEWHERE |= {"--data-path", "--output-dir", "--model-dim", "--num-layers"}
"""Flags that the help of a verb does not list: of every verb, and the original's names."""


def commands(text: str) -> list[str]:
    """Every `danalab ...`, in blocks of code and in lines."""
    text = text.replace("\\\n", " ")
    shell = "\n".join(re.findall(r"^```(?!text).*?^```|<!--.*?-->", text, re.DOTALL | re.MULTILINE))
    lines = re.findall(
        r"^(?:\$ |<!-- (?:instead|before): )?(?:[A-Z_]+=\S+ )*(danalab [^\n]*)", shell, re.MULTILINE
    )
    parts = [
        part.strip()
        for line in lines
        for part in re.split(r"&&|\|\||[;|>]| -- ", re.split(r"\s#\s", line)[0])
    ]
    return [part for part in parts if part.startswith("danalab ")] + re.findall(r"`(danalab [^`]*)`", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_a_page_have_verbs_and_flags_that_exist(page):
    for command in commands(page.read_text(encoding="utf-8")):
        verb, *words = re.sub(r"[\[\]]", " ", command).split()[1:]
        if not re.fullmatch(r"[a-z]+", verb):
            continue
        sub = words[0] if words and " COMMAND " in HELP(verb) and words[0].isalpha() else None
        said = HELP(verb, *filter(None, [sub]))
        assert said.startswith("usage: "), command
        opt = words[words.index("--opt") + 1] if "--opt" in words[:-1] else ""
        if ".py:" in opt:
            continue  # its settings are flags, too
        if re.fullmatch(r"[a-z0-9-]+", opt):
            said += HELP(verb, "--opt", opt)
        for flag in re.findall(r" (--[a-z][\w-]*)", command):
            name = flag.replace("_", "-").replace("--no-", "--")
            assert name in ELSEWHERE or re.search(rf"{name}\b", said), command


@pytest.mark.parametrize("page", [*PAGES, *sorted((ROOT / "notes").glob("*.md"))], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = page.parent / path if path else page
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)", file.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in slugs, target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page):
    text = page.read_text(encoding="utf-8")
    for name in re.findall(
        r"(?<![\w/.-])((?:bench|docs|examples|scripts|tests)/[\w/]+\.(?:py|yaml|sh|md))", text
    ):
        assert (ROOT / name).is_file(), name
