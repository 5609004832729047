"""The report of a ladder: one page that opens offline, its figures as PNG, SVG and CSV, its tables in three formats."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from danalab.files import write_atomically, write_json
from danalab.ladder.analysis import Analysis
from danalab.report.figures import save_figure
from danalab.report.ladder_figures import FIGURES, kappa_figure, sensitivity_figure
from danalab.report.ladder_tables import (
    Table,
    as_csv,
    as_latex,
    as_markdown,
    cost_table,
    law_table,
    lr_law_table,
    saved_table,
    tuned_table,
)
from danalab.report.page import Page


def write_report(found: Analysis, rows: Sequence[Any], out: Path, *, dollars_per_hour: float | None = None) -> Path:
    """Write the page, figures and tables of an analysis into `out`; returns the page.

    Args:
        rows: of `read_ladder`, those that the analysis was made of.
        dollars_per_hour: price of a device, for the cost column.
    """
    out.mkdir(parents=True, exist_ok=True)
    page = Page("Does it save compute?", _lead(found))
    page.heading("Compute saved")
    for sentence in verdict(found):
        page.paragraph(sentence)
    tables = {
        "saved": ("", saved_table(found)),
        "tuned": ("Tuned runs", tuned_table(found)),
        "laws": ("Laws of the final loss, E + A C^-alpha (+ B C^-beta)", law_table(found)),
        "lr-laws": ("Laws of the best learning rate, a (b + P)^d", lr_law_table(found)),
        "cost": ("What the runs took", cost_table(rows, dollars_per_hour)),
    }
    _table(page, out, "saved", tables["saved"][1])
    for stem, figure, caption in _figures(found, rows):
        save_figure(figure, out / stem)
        _write_points(figure, out / f"{stem}.csv")
        page.figure(figure, caption)
    for stem, (title, table) in tables.items():
        if title and table[1]:
            page.heading(title)
            _table(page, out, stem, table)
    if found.notes or found.excluded:
        page.heading("What is not known")
        for note in found.notes:
            page.paragraph(note)
        if found.excluded:
            page.paragraph(
                f"{len(found.excluded)} runs left out, unfinished or not finite: {', '.join(found.excluded)}."
            )
    page.heading("Runs")
    page.links([(row["name"], os.path.relpath(row["run"], out)) for row in rows])
    write_json(out / "analysis.json", found.as_dict())
    write_atomically(out / "index.html", page.render())
    return out / "index.html"


def verdict(found: Analysis) -> list[str]:
    """What the numbers say, in words, whoever won."""
    sentences = []
    for opt in found.opts[1:]:
        sizes = found.saved.get(opt, {})
        reached = {params: each for params, each in sizes.items() if each.saved is not None}
        if not sizes:
            continue
        words = f"{opt} reached {found.baseline}'s final loss at {len(reached)} of {len(sizes)} sizes"
        if reached:
            values = [each.saved for each in reached.values() if each.saved is not None]
            words += f", with {min(values):+.0%} to {max(values):+.0%} of the compute saved"
        gain = found.gains.get(opt)
        if gain is not None and gain.mean is not None:
            words += f"; by the laws {gain.mean:+.1%} at equal loss"
            if gain.interval is not None:
                words += f" ({gain.interval.low:+.1%} to {gain.interval.high:+.1%})"
        sentences.append(words + ".")
    fewest = min((len(each.runs) for each in found.tuned), default=0)
    if fewest < 3:
        sentences.append(f"Some sizes have {fewest} seed{'s' * (fewest > 1)}: their noise is not well known.")
    trials = {opt: sorted({each.trials for each in found.at(opt)}) for opt in found.opts}
    sentences.append(
        "Learning-rate trials at each size: "
        + "; ".join(f"{opt} {' or '.join(map(str, counts))}" for opt, counts in trials.items())
        + "."
    )
    return sentences


def _lead(found: Analysis) -> str:
    sizes = sorted({each.params for each in found.tuned})
    return (
        f"{len(found.opts)} optimizers at {len(sizes)} sizes from {sizes[0]:,} to {sizes[-1]:,} parameters, against "
        f"{found.baseline}; compute by the convention '{found.convention}'."
    )


def _figures(found: Analysis, rows: Sequence[Any]) -> Iterator[tuple[str, Figure, str]]:
    for stem, (draw, caption) in FIGURES.items():
        if (stem == "residuals" and not found.loss_laws) or (stem == "compute-saved-laws" and not found.gains):
            continue
        yield stem, draw(found), caption
    yield "lr-sensitivity", sensitivity_figure(found, rows), "What a wrong learning rate costs, a panel a size."
    kappa = kappa_figure(rows)
    if kappa is not None:
        yield "kappa", kappa, "Final loss against kappa."


def _table(page: Page, out: Path, stem: str, table: Table) -> None:
    page.table(*table)
    for suffix, render in ((".md", as_markdown), (".tex", as_latex), (".csv", as_csv)):
        write_atomically(out / f"table-{stem}{suffix}", render(table))


def _write_points(figure: Figure, path: Path) -> None:
    """The lines of a figure as numbers: panel, label, x, y."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["panel", "label", "x", "y"])
        for axes in figure.axes:
            for line in axes.get_lines():
                label = str(line.get_label())
                for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True):  # pyright: ignore[reportArgumentType]
                    writer.writerow([axes.get_title(), "" if label.startswith("_") else label, x, y])
