"""How long and how dense the pages are: words, median sentence, numbers per 100 words; `python docs/_tooling/words.py`.

Words are counted in all text that a reader sees. Sentences and numbers are those of prose: outside code, formulas,
tables, headings, pictures and generated parts. `docs/index.md` says by its sections which page belongs to which level.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LIMITS = {"Landing": 900, "Start": 6_000, "How to": 12_100, "Learn": 12_000, "Results": 7_900, "Reference": 16_500}
"""Level -> words of all its pages together, at most."""
ALL_WORDS = 56_000
"""Words of all pages together as `wc -w` counts them, with the comments that no reader sees, at most."""
README_WORDS, SENTENCE_WORDS, NUMBERS = 600, 20, 3.0
"""At most: words of README; median words of a sentence and numbers per 100 words of a page, but in the reference."""
LONGEST_SENTENCE = 32
"""Words of any sentence, at most."""

_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_GENERATED = re.compile(r"^<!-- [^>]* -->\n.*?^<!-- end -->$", re.DOTALL | re.MULTILINE)
_FENCE = re.compile(r"^( *)```.*?^\1```[ ]*$", re.DOTALL | re.MULTILINE)
_NOT_PROSE = re.compile(r"^(?: {4,}|\s*\||#|!\[|\[!\[|<).*$", re.MULTILINE)
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d.,]*(?:[eE][-+]?\d+)?%?")


@dataclass(frozen=True)
class Count:
    """What was counted on a page."""

    words: int
    sentence: float
    """Median words of a sentence."""
    numbers: float
    """Numbers per 100 words of prose."""


def prose(page: str) -> list[str]:
    """The paragraphs and list items of a page as plain text: links are their titles, code and formulas are one word.

    Generated parts, the lines of a guide's opening (its aim, its time) and the numbers of lists are left out.
    """
    page = _FENCE.sub("\n\n", _COMMENT.sub("", _GENERATED.sub("\n\n", page)))
    page = re.sub(r"^(?:> .*|\s*[-*] |\s*\d+\. |(?=\*\*\d+\. ))", "\n\n", page, flags=re.MULTILINE)
    page = re.sub(r"^\*\*\d+\. ", "", page, flags=re.MULTILINE)
    page = re.sub(r"\$\$.*?\$\$", "\n\n", page, flags=re.DOTALL)
    page = _NOT_PROSE.sub("\n\n", page)
    page = re.sub(r"<[^>]*>", " ", re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", page))
    page = re.sub(r"`+[^`]*`+|\$[^$]+\$", "CODE", page).replace("**", "").replace("*", "")
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", page) if part.strip()]


def sentences(paragraph: str) -> list[str]:
    return [part for part in re.split(r"(?<=[.!?])[\"')]*\s+", paragraph) if words(part)]


def words(text: str) -> int:
    """As `wc -w` counts them."""
    return len(text.split())


def count(page: str) -> Count:
    """The counts of a page of Markdown."""
    parts = prose(page)
    lengths = [words(sentence) for part in parts for sentence in sentences(part)]
    total, numbers = sum(map(words, parts)), sum(len(_NUMBER.findall(part)) for part in parts)
    return Count(words(_COMMENT.sub("", page)), median(lengths or [0]), 100 * numbers / max(total, 1))


def levels() -> dict[str, list[Path]]:
    """Level -> its pages, in the order of the site."""
    found = {"Landing": [ROOT / "README.md", DOCS / "index.md"]}
    for section in re.split(r"^## ", (DOCS / "index.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        title, _, text = section.partition("\n")
        found[title.strip()] = _listed(text, DOCS)
    return found


def _listed(text: str, folder: Path) -> list[Path]:
    """The pages that lines of lists and tables begin with, and those that the maps of folders among them begin with."""
    pages = []
    for name in dict.fromkeys(re.findall(r"^[-|] \[[^\]]*\]\(([^)#:]+\.md)\)", text, re.MULTILINE)):
        page = folder / name
        pages.append(page)
        if page.name == "README.md":
            pages += _listed(page.read_text(encoding="utf-8"), page.parent)
    return pages


def main() -> None:
    for level, pages in levels().items():
        counts = [count(page.read_text(encoding="utf-8")) for page in pages]
        print(f"{level}: {sum(each.words for each in counts):,} of {LIMITS.get(level, 0):,} words")
        for page, each in zip(pages, counts, strict=True):
            print(f"{each.words:7,} {each.sentence:5.1f} {each.numbers:5.1f}  {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
