"""The best learning rate against the width, with and without mup: table and figure of docs/models.md.

danalab ladder bench/width_transfer.yaml
python bench/width_transfer.py ladders/width_transfer     # packs its rows into bench/results/width_cpu, and writes both
python bench/width_transfer.py                            # from the stored rows
"""

import argparse
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from danalab.errors import UserError
from danalab.ladder.fit.statistics import Interval
from danalab.ladder.fit.tuning import TunedSize
from danalab.ladder.rows import pack, read_ladder
from danalab.report.figures.drawing import panels, shades, styled
from danalab_annexes.ladder.exponents import fit_exponents

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "bench" / "results" / "width_cpu", ROOT / "docs" / "models.md"
_TABLE = re.compile(r"(<!-- width: transfer -->\n).*?(<!-- end -->)", re.DOTALL)
Losses = dict[str, dict[int, dict[float, float]]]
"""Optimizer -> width -> peak rate -> final loss [nats/token]."""


def losses(rows: list[dict[str, Any]]) -> Losses:
    found: Losses = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        if row["status"] == "finished":
            found[row["opt"]][row["settings"]["d_model"]][row["lr"]] = row["final_loss"]
    return found


def exponent(by_width: dict[int, dict[float, float]]) -> tuple[float, Interval]:
    """x of best rate ~ width^x, with its 95% interval; UserError: best rates are the outermost ones tried."""
    rungs = []
    for _, tried in sorted(by_width.items()):
        rates = np.array(sorted(tried))
        values = np.array([tried[rate] for rate in rates])
        best = int(values.argmin())
        rungs.append(TunedSize(rates, values, best, values[[best]]))
    law = fit_exponents({"width": sorted(by_width)}, rungs)
    if "width" not in law.intervals:
        raise UserError("the best rate is the outermost one tried at half of the widths; try more rates")
    return law.exponents["width"], law.intervals["width"]


def table(found: Losses) -> str:
    """In Markdown: a row for each optimizer; in each cell the best rate tried, and + the loss of transfer [nats/token].

    Transfer takes the narrowest width's best rate of those that all widths tried.
    """
    widths = sorted({width for each in found.values() for width in each})
    lines = ["| optimizer | " + " | ".join(f"width {width}" for width in widths) + " | best rate ~ width^x |"]
    lines.append("| --- |" + " --- |" * (len(widths) + 1))
    for opt, by_width in found.items():
        common = set.intersection(*({float(f"{rate:.3g}") for rate in tried} for tried in by_width.values()))
        cells, first = [], None
        for tried in (by_width[width] for width in widths):
            rounded = {float(f"{rate:.3g}"): loss for rate, loss in tried.items()}
            first = first or min(common, key=rounded.__getitem__)
            cells.append(f"{min(tried, key=tried.__getitem__):.2g}, +{rounded[first] - min(tried.values()):.3f}")
        slope, interval = exponent(by_width)
        lines.append(f"| {opt} | {' | '.join(cells)} | {slope:+.2f} ({interval.low:+.2f} to {interval.high:+.2f}) |")
    return "\n".join(lines) + "\n"


@styled
def figure(found: Losses, path: Path) -> None:
    """Loss against rate, one line per width; a panel for each optimizer."""
    whole, places = panels(len(found), each=(3.1, 2.4))
    for axes, (opt, by_width) in zip(places, found.items(), strict=True):
        for width, color in zip(sorted(by_width), shades(len(by_width)), strict=True):
            rates = sorted(by_width[width])
            values = [by_width[width][rate] for rate in rates]
            axes.plot(rates, values, color=color, linewidth=1.2, marker=".", label=f"width {width}")
            lowest = int(np.argmin(values))
            axes.plot(rates[lowest], values[lowest], color=color, marker="o", markersize=6)
        axes.set(xscale="log", title=opt, xlabel="peak learning rate", ylabel="loss [nats/token]")
    places[0].legend(fontsize=7)
    whole.savefig(path, dpi=160)


def fill(page: str, found: Losses) -> str:
    """The page with the table of the rows."""
    return _TABLE.sub(lambda match: match[1] + table(found) + match[2], page)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ladder", type=Path, nargs="?")
    if (folder := parser.parse_args().ladder) is not None:
        pack(read_ladder(folder), RESULTS)
    stored = losses(read_ladder(RESULTS))
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), stored), encoding="utf-8")
    figure(stored, ROOT / "docs" / "figures" / "width_cpu.png")
    print(table(stored), end="")
