"""The table of a ladder over widths: the best rate at each, and what the narrowest width's best rate costs there.

danalab ladder bench/width_transfer.yaml
python bench/width_transfer.py ladders/width_transfer
"""

import argparse
from collections import defaultdict
from pathlib import Path
from typing import Any

from danalab.ladder.rows import read_ladder


def table(rows: list[dict[str, Any]]) -> str:
    """A table in Markdown: a row for each optimizer; in each cell the best rate, and + the loss of transfer [nats]."""
    losses: dict[str, dict[int, dict[float, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        if row["status"] == "finished":
            losses[row["opt"]][row["settings"]["d_model"]][row["lr"]] = row["final_loss"]
    widths = sorted({width for each in losses.values() for width in each})
    lines = ["| best rate, + cost of the narrowest's | " + " | ".join(map(str, widths)) + " |"]
    lines.append("|" + " --- |" * (len(widths) + 1))
    for opt, by_width in losses.items():
        first = min(by_width[widths[0]], key=by_width[widths[0]].__getitem__)
        cells = []
        for tried in (by_width[width] for width in widths):
            best = min(tried, key=tried.__getitem__)
            same = next((loss for lr, loss in tried.items() if abs(lr / first - 1) < 1e-6), None)
            cells.append(f"{best:.3g}, " + ("not tried" if same is None else f"+{same - tried[best]:.3f}"))
        lines.append(f"| {opt} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ladder", type=Path)
    print(table(read_ladder(parser.parse_args().ladder)))
