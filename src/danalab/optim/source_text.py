"""Definitions as source text, laid out as a formatter does: lines of at most 120 characters, double quotes.

`ast.unparse` writes a statement in one line; where it is too long, it is broken in its last brackets.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable
from typing import Any

WIDTH = 120


def lines_of(statements: list[ast.stmt], depth: int) -> list[str]:
    """The lines of a block."""
    indent, lines = "    " * depth, list[str]()
    for position, each in enumerate(statements):
        if isinstance(each, (ast.FunctionDef, ast.ClassDef)):
            if depth and position:
                lines.append("")
            lines += _wrapped(_header(each), depth) + lines_of(each.body, depth + 1)
            if depth and position + 1 < len(statements):
                lines.append("")
        elif isinstance(each, ast.If):
            lines += _wrapped(f"if {ast.unparse(each.test)}:", depth) + lines_of(each.body, depth + 1)
            if each.orelse:
                other = lines_of(each.orelse, depth + (not isinstance(each.orelse[0], ast.If)))
                is_elif = isinstance(each.orelse[0], ast.If)
                lines += [f"{indent}el{other[0].strip()}", *other[1:]] if is_elif else [f"{indent}else:", *other]
        elif isinstance(each, ast.For):
            target = ast.unparse(each.target)
            target = target[1:-1] if isinstance(each.target, ast.Tuple) and target[0] == "(" else target
            head = f"for {target} in {ast.unparse(each.iter)}:"
            lines += _wrapped(head, depth) + lines_of(each.body, depth + 1)
        elif isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant):
            text = textwrap.indent(f'"""{each.value.value}' + '"""', indent).split("\n")
            lines += text if len(text) == 1 else [*text[:-1], text[-1].removesuffix('"""'), f'{indent}"""']
        elif isinstance(each, ast.Return) and isinstance(each.value, ast.Dict) and len(each.value.keys) > 3:
            items = [_wrapped(part, 0)[0] for part in _split(ast.unparse(each.value)[1:-1])]
            lines += filled("return {", items, "}", depth).split("\n")
        else:
            lines += _wrapped(_statement(each), depth)
    return [line.rstrip() for line in lines]


def _statement(node: Any) -> str:
    """A statement in one line, its tuples without brackets, as from Python 3.11 on."""
    if isinstance(node, ast.Assign):
        return f"{_bare(node.targets[0])} = {_bare(node.value)}"
    if isinstance(node, ast.Return) and node.value is not None:
        return f"return {_bare(node.value)}"
    return ast.unparse(node)


def _bare(value: ast.expr) -> str:
    text = ast.unparse(value)
    return text[1:-1] if isinstance(value, ast.Tuple) and text.startswith("(") and len(value.elts) > 1 else text


def _header(node: Any) -> str:
    if isinstance(node, ast.ClassDef):
        return f"class {node.name}({', '.join(map(ast.unparse, node.bases))}):"
    head = f"def {node.name}({ast.unparse(node.args)})"
    returned = "" if node.returns is None or len(head) > WIDTH - 10 else f" -> {ast.unparse(node.returns)}"
    return f"{head}{returned}:" if len(head + returned) < WIDTH else f"{head}:"


def _wrapped(text: str, depth: int, end: str = "") -> list[str]:
    """A statement, in several lines where it is too long for one, as a formatter breaks it."""
    text = re.sub(r"(?<![\w.)\]])([A-Za-z_]\w*|\d+) \*\* (-?[\w.]+)(?![\w(\[.])", r"\1**\2", text)
    text = re.sub(r"(\w: \w+)=", r"\1 = ", re.sub(r"\[(\w+):(\w+ [+-] \w+)\]", r"[\1 : \2]", text))
    text = text.replace("'", '"') if '"' not in text else text
    indent = "    " * depth
    if len(indent + text + end) <= WIDTH:
        return [indent + text + end]
    opening, closing = _last_brackets(text)
    if opening is None:
        return [indent + text + end]
    inner = text[opening + 1 : closing]
    parts = _split(inner)
    if len(indent) + 4 + len(inner) <= WIDTH:
        middle = _wrapped(inner, depth + 1)
    else:
        middle = [line for part in parts for line in _wrapped(part, depth + 1, ",")]
    return [indent + text[: opening + 1], *middle, indent + text[closing:] + end]


def filled(head: str, items: Iterable[str], tail: str, depth: int) -> str:
    """`head`, the items with commas in as few lines as possible, and `tail`."""
    indent, margin = "    " * depth, "    " * (depth + 1)
    text = ", ".join(each.replace(" ", "\0") for each in items) + ","
    how: dict[str, Any] = {"break_on_hyphens": False, "break_long_words": False}
    inner = textwrap.fill(text, WIDTH, initial_indent=margin, subsequent_indent=margin, **how).replace("\0", " ")
    return f"{indent}{head}\n{inner}\n{indent}{tail}  # fmt: skip"


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
