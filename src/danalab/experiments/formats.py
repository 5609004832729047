"""Tables as text: for the terminal, Markdown and CSV, and the words of numbers in them."""

import csv
import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from danalab.experiments.statistics import Interval

NOT_KNOWN = "noise not known"
Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""Headings and rows of cells."""


def as_markdown(table: Table, caption: str = "") -> str:
    """A table for a README; text that looks like HTML stays text."""
    headings, rows = table
    lines = ["| " + " | ".join(headings) + " |", "|" + " --- |" * len(headings)]
    lines += ["| " + " | ".join(map(_as_text, row)) + " |" for row in rows]
    return "\n".join(lines) + "\n" + (f"\n{_as_text(caption)}\n" if caption else "")


def _as_text(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")


def as_csv(table: Table) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([table[0], *table[1]])
    return text.getvalue()


def as_text(headings: Sequence[str], lines: Sequence[Sequence[str]], left: int = 1) -> str:
    """A table for the terminal, `left` columns aligned to the left; of full width in a file or a pipe."""
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
    with console.capture() as captured:
        console.print(table)
    return captured.get().rstrip("\n")


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
