"""Docstrings, which are plain text with Markdown's code marks, as reStructuredText for Sphinx."""

import re
from typing import Any

_CODE = re.compile(r"(`[^`]+`)")
_SPECIAL = re.compile(r"[*|]|(?<=\w)_(?=\W|$)")


def as_rst(app: Any, kind: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Sphinx's hook for a docstring, in place; comes before napoleon's, which takes an attribute's first line up to a
    colon for its type if no comment precedes it."""
    lines[:] = escaped(lines)
    if kind in ("attribute", "data", "property"):
        lines[:0] = ["..", ""]


def escaped(lines: list[str]) -> list[str]:
    """Lines of a docstring: code in double marks, other marks as they stand, indented formulas as literal blocks."""
    result: list[str] = []
    literal = False
    for line in lines:
        indented = line.startswith("    ")
        if indented and not literal and (not result or not result[-1].strip()):
            literal = True
            result += ["::", ""]
        elif literal and line.strip() and not indented:
            literal = False
        result.append(line if literal else _escape(line))
    return result


def _escape(line: str) -> str:
    parts = _CODE.split(line)
    return "".join(f"`{part}`" if part.startswith("`") else _SPECIAL.sub(r"\\\g<0>", part) for part in parts)
