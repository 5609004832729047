"""Run the Python of the study guide and write what it prints below it.

    python docs/build_guide.py [PAGE ...]        # default: every page of docs/guide

The blocks of a page share their names, in order. A ```text block directly below a ```python block is its output.
`tests/docs/test_guide.py` runs the same and compares.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
import sys
from pathlib import Path

GUIDE = Path(__file__).parent / "guide"
BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<shown>.*?)^```\n)?", re.DOTALL | re.MULTILINE
)
NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def pages() -> list[Path]:
    """Every page of the guide."""
    return sorted(GUIDE.rglob("*.md"))


def run(page: Path) -> list[tuple[str, str | None, str]]:
    """(code, output on the page or None, printed output) of every block."""
    names: dict = {"__name__": page.stem}
    found = []
    for match in BLOCK.finditer(page.read_text(encoding="utf-8")):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            for statement in ast.parse(
                match["code"]
            ).body:  # one by one, so that values are printed as by the prompt
                exec(compile(ast.Interactive([statement]), page.name, "single"), names)
        found.append((match["code"], match["shown"], printed.getvalue()))
    return found


def same(shown: str, printed: str) -> bool:
    """Equal words, and numbers that are equal to 2% or to two units of the last digit: processors round differently."""
    if NUMBER.sub("#", shown).split() != NUMBER.sub("#", printed).split():
        return False
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True)
    return all(
        abs(float(a) - float(b)) <= max(0.02 * abs(float(a)), 2.001 * _last_digit(a)) for a, b in pairs
    )


def _last_digit(number: str) -> float:
    """One unit of the last digit after the point; 0 for a whole number."""
    digits, _, exponent = number.partition("e")
    decimals = len(digits.partition(".")[2])
    return 10.0 ** (int(exponent or 0) - decimals) if decimals or exponent else 0.0


def refresh(page: Path) -> str:
    """The page with the output of every block that prints."""
    results = iter(run(page))

    def filled(_: re.Match) -> str:
        code, _, printed = next(results)
        return f"```python\n{code}```\n" + (f"\n```text\n{printed}```\n" if printed else "")

    return BLOCK.sub(filled, page.read_text(encoding="utf-8"))


if __name__ == "__main__":
    for each in [Path(name) for name in sys.argv[1:]] or pages():
        each.write_text(refresh(each), encoding="utf-8")
        print(each)
