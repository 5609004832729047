"""The report of a ladder: one page that opens offline, figures as PNG, SVG, PDF and CSV, tables in three formats.

Figures whose data the runs did not record are listed with the way to get the data.
"""

import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from danalab.colors import optimizer_color
from danalab.errors import UserError
from danalab.files import write_atomically, write_json
from danalab.ladder.analysis import analyse
from danalab.ladder.preregistration import outcomes, read_predictions
from danalab.ladder.rows import pack, read_ladder
from danalab.report.contents import FIGURES, FOLDED, SECTIONS, TITLES
from danalab.report.data import MissingFigure, ReportData, Row, has_diverged, is_finished
from danalab.report.figures.drawing import save_figure, save_points, svg_text
from danalab.report.figures.ladder import headline_figure
from danalab.report.figures.ticks import short
from danalab.report.page.page import Page
from danalab.report.tables.formats import Table, as_csv, as_latex, as_markdown
from danalab.report.tables.headline import caveat, headlines, method, verdict
from danalab.report.tables.horizon import named_tables
from danalab.report.tables.ladder import (
    Address,
    cost_table,
    failed_table,
    headline_table,
    law_table,
    lr_law_table,
    runs_table,
    saved_table,
    tuned_table,
)
from danalab.report.tables.rates import predicted_table, shared_curvature_table, tolerance_table
from danalab.report.tables.registered import registered_table

PAGE = "report.html"
MANY = 40
"""Rows above which a table is folded away."""


def read_report_data(
    path: Path, *, baseline: str | None = None, dollars_per_hour: float | None = None, **fit: Any
) -> ReportData:
    """The data of a ladder or sweep.

    Args:
        path: its folder, or its ladder.jsonl.
        baseline: None: adamw, or where none of it finished the first optimizer.
        fit: settings of `danalab.ladder.analysis.analyse`.
    """
    rows = read_ladder(path)
    if not any(map(is_finished, rows)):
        raise UserError(f"{path}: none of {len(rows)} runs has finished with a finite loss; there is nothing to report")
    found = analyse(rows, baseline=baseline, **fit)
    predictions = read_predictions(path if path.is_dir() else path.parent)
    return ReportData(found, rows, dollars_per_hour, outcomes(predictions, found.tuned))


def write_report(data: ReportData, out: Path, *, packed: bool = False) -> Path:
    """Write the page, figures and tables into `out`; returns the page.

    Args:
        packed: make a folder to publish: rows and validation curves are copied beside the page, which then links to
            them; of pictures only the headline's are written (all are in the page, and their numbers in CSV).
    """
    out.mkdir(parents=True, exist_ok=True)
    if packed:
        pack(data.rows, out)
    page = Page("How much compute does it save?", _lead(data))
    page.cards([(each.opt, each.answer, each.lines, optimizer_color(each.opt)) for each in headlines(data)])
    for sentence in (*verdict(data.analysis), caveat(data)):
        if sentence is not None:
            page.paragraph(sentence)
    address = _address(out, packed)
    tables = _tables(data, address)
    absent = []
    for anchor, heading, stems, names in SECTIONS:
        drawn = [(stem, FIGURES[stem].draw(data)) for stem in stems]
        shown = [(stem, figure) for stem, figure in drawn if isinstance(figure, Figure)]
        absent += [(stem, figure.how) for stem, figure in drawn if isinstance(figure, MissingFigure)]
        if not shown and not any(tables[name][1] for name in names):
            continue
        page.heading(heading, anchor)
        for stem, figure in shown:
            svg = svg_text(figure)
            page.figure(figure, FIGURES[stem].caption, _files(figure, svg, out / stem, packed), svg)
        for name in names:
            _table(page, out, name, tables[name], method(data.analysis) if name == "saved" else "")
    _not_known(page, out, data, absent, address)
    _runs(page, data, address)
    save_figure(headline_figure(data), out / "headline")
    write_atomically(out / "table-headline.md", as_markdown(headline_table(data), method(data.analysis)))
    write_json(out / "analysis.json", data.analysis.as_dict())
    write_atomically(out / PAGE, page.render())
    return out / PAGE


def _lead(data: ReportData) -> str:
    found = data.analysis
    sizes = sorted({each.params for each in found.tuned})
    scale = f"at {short(sizes[0])} parameters" if len(sizes) == 1 else (
        f"at {len(sizes)} sizes from {short(sizes[0])} to {short(sizes[-1])} parameters"
    )  # fmt: skip
    others = len(found.opts) - 1
    tuned = "tuned " if all(len(each.rates) > 1 for each in found.at(found.baseline)) else ""
    return (
        f"{others} optimizer{'s' * (others != 1)} against {tuned}{found.baseline} {scale}, at equal loss. "
        f"Compute saved is 1 \N{MINUS SIGN} C/C0, where {found.baseline} spent C0 for its final loss and the other "
        f"needed C to reach it. {len(data.rows)} runs; compute by the convention \u201c{found.convention}\u201d."
    )


def _address(out: Path, packed: bool) -> Address:
    """Where a run is, from the page."""
    from danalab.ladder.rows import CURVES

    if packed:
        return lambda row: f"{CURVES}/{row['name']}.jsonl"
    return lambda row: os.path.relpath(row["run"], out)


def _tables(data: ReportData, address: Address) -> dict[str, Table]:
    found = data.analysis
    return {
        "saved": saved_table(found, address),
        "tuned": tuned_table(found, address),
        "laws": law_table(found),
        "lr-laws": lr_law_table(found),
        "shared-curvature": shared_curvature_table(found),
        "tolerance": tolerance_table(found),
        "predicted": predicted_table(found),
        "cost": cost_table(data),
        **named_tables(found),
        "registered": registered_table(data.registered),
    }


def _files(figure: Figure, svg: str, stem: Path, packed: bool) -> list[tuple[str, str]]:
    """Write the figure's files; returns links to them."""
    files = [] if packed else save_figure(figure, stem, svg)
    save_points(figure, stem.with_suffix(".csv"))
    return [(file.suffix[1:].upper(), file.name) for file in (*files, stem.with_suffix(".csv"))]


def _table(page: Page, out: Path, name: str, table: Table, caption: str = "") -> None:
    if not table[1]:
        return
    if TITLES[name]:
        page.subheading(TITLES[name])
    with page.fold(f"{len(table[1])} lines") if name in FOLDED else nullcontext():
        page.table(*table, mark=optimizer_color)
    if caption:
        page.paragraph(caption)
    for suffix, text in (
        (".md", as_markdown(table, caption)), (".tex", as_latex(table, caption)), (".csv", as_csv(table)),
    ):  # fmt: skip
        write_atomically(out / f"table-{name}{suffix}", text)


def _not_known(page: Page, out: Path, data: ReportData, absent: Sequence[tuple[str, str]], address: Address) -> None:
    """The section on missing results, failed runs and missing data."""
    failed, found = data.failed(), data.analysis
    if failed or found.notes or absent:
        page.heading("What is not known", "unknown")
    if failed:
        lost = sum(map(has_diverged, failed))
        page.paragraph(
            f"{len(failed)} of {len(data.rows)} runs have no final loss and are in no fit: "
            f"{lost} whose loss was not finite, {len(failed) - lost} unfinished."
        )
        page.table(*failed_table(failed, address), mark=optimizer_color)
    for note in found.notes:
        page.paragraph(note)
    if absent:
        page.subheading("Not drawn, and what it takes")
        page.bullets([(stem, how) for stem, how in absent])


def _runs(page: Page, data: ReportData, address: Address) -> None:
    page.heading("Runs", "runs")
    for opt in dict.fromkeys(row["opt"] for row in data.rows):
        mine: list[Row] = sorted(
            (row for row in data.rows if row["opt"] == opt), key=lambda row: (row["params"], row["name"])
        )
        page.subheading(f"{opt}: {len(mine)} runs", f"runs-{opt}")
        with page.fold("show") if len(data.rows) > MANY else nullcontext():
            page.table(*runs_table(mine, address), mark=optimizer_color)
