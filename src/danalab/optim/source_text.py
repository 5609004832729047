"""Definitions as source text: `ast.unparse`'s lines, with double quotes and at most 120 characters each."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable
from typing import Any

WIDTH = 120


def lines_of(node: ast.AST) -> list[str]:
    """The lines of a definition; one that is too long is broken in its last brackets."""
    text = re.sub(r"'([\w-]*)'", r'"\1"', ast.unparse(node))
    text = re.sub(r"^(def .{111,}) -> .*:$", r"\1:", text, flags=re.MULTILINE)
    return [short for line in text.split("\n") for short in _wrapped(_bare(line.rstrip()))]


def _bare(line: str) -> str:
    """An assignment or a return of a tuple without its brackets."""
    head, equals, tuple_ = line.partition(" = (" if " = (" in line else "return (")
    closed = _last_brackets(f"({tuple_}") == (0, len(tuple_)) and len(_split(tuple_[:-1])) > 1
    return f"{head}{equals[:-1]}{tuple_[:-1]}" if closed else line


def _wrapped(line: str) -> list[str]:
    opening, closing = _last_brackets(line) if len(line) > WIDTH else (None, 0)
    if opening is None:
        return [line]
    depth = (len(line) - len(line.lstrip())) // 4
    head, items = line[: opening + 1].lstrip(), _split(line[opening + 1 : closing])
    return filled(head, items, line[closing:], depth).split("\n")


def filled(head: str, items: Iterable[str], tail: str, depth: int) -> str:
    """`head`, the items with commas in as few lines as possible, and `tail`."""
    indent, margin = "    " * depth, "    " * (depth + 1)
    text = ", ".join(each.replace(" ", "\0") for each in items)
    how: dict[str, Any] = {"break_on_hyphens": False, "break_long_words": False}
    inner = textwrap.fill(text, WIDTH, initial_indent=margin, subsequent_indent=margin, **how).replace("\0", " ")
    return f"{indent}{head}\n{inner}\n{indent}{tail}"


def _last_brackets(text: str) -> tuple[int | None, int]:
    """Positions of the last pair of outermost brackets with something between them."""
    depth, opened, found = 0, 0, (None, 0)
    for position, letter in enumerate(text):
        if letter in "([{":
            opened = position if depth == 0 else opened
            depth += 1
        elif letter in ")]}":
            depth -= 1
            if depth == 0 and position > opened + 1:
                found = (opened, position)
    return found


def _split(text: str) -> list[str]:
    """At the commas outside brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]
