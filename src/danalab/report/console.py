"""Tables on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from danalab.report.comparison import COLUMNS, Row, table_cells


def print_table(rows: Sequence[Row]) -> None:
    """The comparison as a table on standard output; never cut off where the output is a file or a pipe."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for position, heading in enumerate(COLUMNS):
        table.add_column(heading, justify="left" if position < 2 else "right")
    for row in rows:
        table.add_row(*table_cells(row))
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    console.print(table)
