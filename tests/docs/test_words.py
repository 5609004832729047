"""Pages are short and written in plain sentences: words of each level, length of sentences, numbers in prose."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest

from _tooling.words import (
    ALL_WORDS,
    DOCS,
    LIMITS,
    LONGEST_SENTENCE,
    NUMBERS,
    README_WORDS,
    ROOT,
    SENTENCE_WORDS,
    count,
    levels,
    prose,
    sentences,
    words,
)

LEVELS = levels()
PAGES = [page for pages in LEVELS.values() for page in pages]
READ = [page for level, pages in LEVELS.items() if level != "Reference" for page in pages]
PRIVATE = (
    r"\b(?:rungs?|in place of|but for|beside torch|is taken|what is no matrix|the ladder before|two valleys|verbs?|anew"
    r"|level (?:on|with))\b"
)
HEADLINES = {
    "saving": r"(\d+(?:\.\d+)?)% (?:less compute|fewer tokens|of (?:the |AdamW's )?compute)|\bsav\w+ (\d+)%",
    "loss": r"([1-9]\d*\.\d+|0\.0*[1-9]\d+) (?:\([^)]*\) )?nats",
    "speed": r"(\d+\.\d+) (?:x|times)\b",
}
"""What a headline number is of -> how it is written; a loss of one digit is a round number."""


def named(page) -> str:
    return str(page.relative_to(ROOT))


def test_every_page_has_one_level():
    written = {page for page in DOCS.rglob("*.md") if "reference" not in page.relative_to(DOCS).parts}
    assert sorted(PAGES) == sorted(written | {ROOT / "README.md"})


@pytest.mark.parametrize("level", LIMITS)
def test_a_level_has_at_most_its_words(level):
    assert sum(count(page.read_text(encoding="utf-8")).words for page in LEVELS[level]) <= LIMITS[level]


def test_all_pages_together_are_short_as_wc_counts_them():
    assert sum(words(page.read_text(encoding="utf-8")) for page in PAGES) <= ALL_WORDS
    assert words((ROOT / "README.md").read_text(encoding="utf-8")) <= README_WORDS


@pytest.mark.parametrize("page", READ, ids=named)
def test_prose_has_short_sentences_few_numbers_and_no_private_words(page):
    text = page.read_text(encoding="utf-8")
    found = count(text)
    assert found.sentence <= SENTENCE_WORDS
    assert found.numbers <= NUMBERS
    assert re.findall(PRIVATE, " ".join(prose(text))) == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_no_sentence_is_very_long(page):
    found = [each for part in prose(page.read_text(encoding="utf-8")) for each in sentences(part)]
    assert [each for each in found if words(each) > LONGEST_SENTENCE] == []


@pytest.mark.parametrize("name", ["AGENTS.md", "CONTRIBUTING.md"])
def test_pages_for_those_who_change_the_code_have_no_private_words(name):
    assert (
        re.findall(
            PRIVATE, " ".join(prose((ROOT / name).read_text(encoding="utf-8"))).replace("Functions are verbs", "")
        )
        == []
    )


def test_a_headline_number_is_written_once():
    """A saving, a loss or a speed that two pages tell in prose will differ some day."""
    pages = defaultdict(set)
    for page in READ:
        for paragraph in prose(page.read_text(encoding="utf-8")):
            for kind, pattern in HEADLINES.items():
                for match in re.finditer(pattern, paragraph):
                    number = next(filter(None, match.groups()))
                    if page.parent.name != "guide":  # what others published, and worked examples
                        pages[kind, number].add(named(page))
    assert {found: where for found, where in pages.items() if len(where) > 1} == {}


def test_what_is_counted():
    page = (
        "# A title of 9 words\n\n> **Time** 10 minutes.\n\nOne `code 1` is here. It has 2 numbers and $x_4$ (95%).\n\n"
        "| a | 1 |\n\n```\n5 6 7\n```\n\n1. An item [link](a.md#8)\n2. Another <!-- 9 -->\n"
    )
    assert prose(page) == [
        "One CODE is here. It has 2 numbers and CODE (95%).",
        "An item link",
        "Another",
    ]
    found = count(page)
    assert (found.sentence, round(found.numbers, 1)) == (3.5, 13.3)
    assert found.words == len(page.split()) - 3
