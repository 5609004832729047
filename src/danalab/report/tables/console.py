"""Tables on the terminal."""

from collections.abc import Sequence


def print_table(headings: Sequence[str], lines: Sequence[Sequence[str]], left: int = 1) -> None:
    """A table on standard output; with full width where the output is a file or a pipe.

    Args:
        left: number of columns of text, aligned to the left; numbers are aligned to the right.
    """
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
