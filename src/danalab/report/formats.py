"""A table as Markdown, LaTeX and CSV; its cells are text, with links to their sources, or numbers as text."""

import csv
import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from danalab.ladder.fit.statistics import Interval

NOT_KNOWN = "noise not known"
Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""Headings and rows of cells."""


class Linked(str):
    """A cell with links, plain text where links are not supported; `pieces` are its parts as (text, address)."""

    pieces: tuple[tuple[str, str], ...]

    def __new__(cls, text: str, address: str) -> "Linked":
        """One text with one address."""
        return cls.several([(text, address)])

    @classmethod
    def several(cls, pieces: Sequence[tuple[str, str]]) -> "Linked":
        """Several texts, each with an address; as text they are a list with commas."""
        made = str.__new__(cls, ", ".join(text for text, _ in pieces))
        made.pieces = tuple(pieces)
        return made


def as_markdown(table: Table, caption: str = "") -> str:
    """For a README, links to folders included; text that looks like HTML stays text."""
    headings, rows = table
    lines = ["| " + " | ".join(headings) + " |", "|" + " --- |" * len(headings)]
    lines += ["| " + " | ".join(map(_markdown_cell, row)) + " |" for row in rows]
    return "\n".join(lines) + "\n" + (f"\n{_as_text(caption)}\n" if caption else "")


def _markdown_cell(cell: str) -> str:
    if not isinstance(cell, Linked):
        return _as_text(cell)
    return ", ".join(
        _as_text(text) if url.startswith("#") else f"[{_as_text(text)}]({quote(url)})" for text, url in cell.pieces
    )


def _as_text(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")


def as_latex(table: Table, caption: str = "") -> str:
    """A tabular; with a caption in a table of its own."""
    headings, rows = table
    tabular = "\n".join([
        rf"\begin{{tabular}}{{l{'r' * (len(headings) - 1)}}}", r"\toprule", _latex_row(headings), r"\midrule",
        *map(_latex_row, rows), r"\bottomrule", r"\end{tabular}", "",
    ])  # fmt: skip
    if not caption:
        return tabular
    return f"\\begin{{table}}\n\\centering\n\\caption{{{_escaped(caption)}}}\n{tabular}\\end{{table}}\n"


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(map(_escaped, cells)) + r" \\"


def _escaped(text: str) -> str:
    for character in "%_&#$":
        text = text.replace(character, "\\" + character)
    for words, sign in (("<=", "$\\le$"), (">=", "$\\ge$"), ("^", r"\^{}"), ("~", r"\~{}")):
        text = text.replace(words, sign)
    return text


def as_csv(table: Table) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([table[0], *table[1]])
    return text.getvalue()


def print_table(headings: Sequence[str], lines: Sequence[Sequence[str]], left: int = 1) -> None:
    """A table on standard output, `left` columns aligned to the left; of full width in a file or a pipe."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for position, heading in enumerate(headings):
        table.add_column(heading, justify="left" if position < left else "right")
    for line in lines:
        table.add_row(*line)
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    console.print(table)


def short(number: float) -> str:
    """A short count: 45k, 1.5M, 2B."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.3g}"


def fraction(number: float) -> str:
    """A short factor: 4, 1, 1/16; 0.3 where it is no unit fraction."""
    parts = round(1 / number)
    return f"1/{parts}" if parts > 1 and math.isclose(number * parts, 1) else short(number)


def span(interval: "Interval | None", form: str, unknown: str = NOT_KNOWN) -> str:
    """The bounds of an interval; `unknown` without one."""
    return unknown if interval is None else f"{interval.low:{form}} to {interval.high:{form}}"


def or_dash(value: float | None, form: str) -> str:
    """A number, or a dash."""
    return "-" if value is None else format(value, form)


def yes_or_no(value: bool | None) -> str:
    """An answer, or a dash."""
    return "-" if value is None else "yes" if value else "no"
