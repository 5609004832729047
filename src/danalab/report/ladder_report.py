"""The report of a ladder: one page that opens offline, figures as PNG, SVG, PDF and CSV, tables in three formats.

Figures whose data the runs did not record are listed with the way to get the data.
"""

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from danalab.colors import optimizer_color
from danalab.errors import UserError
from danalab.files import write_atomically, write_json
from danalab.ladder.analysis import analyse
from danalab.ladder.rows import pack, read_ladder
from danalab.ladder.studies import Address, PageSection, all_studies
from danalab.report.data import MissingFigure, ReportData
from danalab.report.figures.drawing import save_figure, save_points, svg_text
from danalab.report.figures.laws import (
    cost_figure,
    curves_figure,
    gain_figure,
    headline_figure,
    law_figure,
    lr_law_figure,
    residual_figure,
    saved_figure,
)
from danalab.report.formats import Table, as_csv, as_latex, as_markdown, short
from danalab.report.headline import caveat, headlines, method, verdict
from danalab.report.page import Page
from danalab.report.tables import analysis_tables, cost_table, failed_table, headline_table, runs_table
from danalab.sweep.rows import PACKED, has_diverged, is_usable

PAGE = "report.html"
MANY = 40  # rows above which a table is folded away


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
    if not any(map(is_usable, rows)):
        raise UserError(f"{path}: none of {len(rows)} runs has finished with a finite loss; there is nothing to report")
    analysis = analyse(rows, baseline=baseline, **fit)
    return ReportData(analysis, rows, dollars_per_hour, path if path.is_dir() else path.parent)


def write_report(data: ReportData, out: Path, *, packed: bool = False) -> Path:
    """Write the page, figures and tables into `out`; returns the page.

    `packed`: make a folder to publish: rows and metrics are packed beside the page, which then links to them;
    of pictures only the headline's are written (all are in the page, and their numbers in CSV). Files of studies go
    with it.
    """
    out.mkdir(parents=True, exist_ok=True)
    if packed:
        pack(data.rows, out)
        for name in [name for study in all_studies() for name in study.files]:
            if data.folder is not None and (data.folder / name).is_file():
                shutil.copyfile(data.folder / name, out / name)
    page = Page("How much compute does it save?", _lead(data))
    page.cards([(each.opt, each.answer, each.lines, optimizer_color(each.opt)) for each in headlines(data)])
    for sentence in (*verdict(data.analysis), caveat(data)):
        if sentence is not None:
            page.paragraph(sentence)
    address = _address(out, packed)
    tables = analysis_tables(data.analysis, address, data.folder) | {"cost": ("Costs", cost_table(data))}
    figures, absent = dict(FIGURES), []
    for study in all_studies():
        figures |= study.figures()
    for section in page_sections():
        drawn = [(stem, figures[stem][0](data)) for stem in section.figures]
        shown = [(stem, figure) for stem, figure in drawn if isinstance(figure, Figure)]
        absent += [(stem, figure.how) for stem, figure in drawn if isinstance(figure, MissingFigure)]
        if not shown and not any(tables[name][1][1] for name in section.tables):
            continue
        page.heading(section.heading, section.anchor)
        for stem, figure in shown:
            svg = svg_text(figure)
            page.figure(figure, figures[stem][1], _files(figure, svg, out / stem, packed), svg)
        for name in section.tables:
            _table(page, out, name, *tables[name], method(data.analysis) if name == "saved" else "")
    _not_known(page, out, data, absent, address)
    _runs(page, data, address)
    save_figure(headline_figure(data), out / "headline")
    write_atomically(out / "table-headline.md", as_markdown(headline_table(data), method(data.analysis)))
    write_json(out / "analysis.json", data.analysis.as_dict())
    write_atomically(out / PAGE, page.render())
    return out / PAGE


def _lead(data: ReportData) -> str:
    analysis = data.analysis
    sizes = sorted({each.params for each in analysis.tuned})
    span = f"{len(sizes)} sizes from {short(sizes[0])} to {short(sizes[-1])}"
    scale = f"at {short(sizes[0]) if len(sizes) == 1 else span} parameters"
    others = len(analysis.opts) - 1
    tuned = "tuned " if all(len(each.rates) > 1 for each in analysis.at(analysis.baseline)) else ""
    return (
        f"{others} optimizer{'s' * (others != 1)} against {tuned}{analysis.baseline} {scale}, at equal loss. "
        f"Compute saved is 1 \N{MINUS SIGN} C/C0, where {analysis.baseline} spent C0 for its final loss and the other "
        f"needed C to reach it. {len(data.rows)} runs; compute by the convention \u201c{analysis.convention}\u201d."
    )


def _address(out: Path, packed: bool) -> Address:
    if packed:
        return lambda row: PACKED
    return lambda row: os.path.relpath(row["run"], out)


def _files(figure: Figure, svg: str, stem: Path, packed: bool) -> list[tuple[str, str]]:
    files = [] if packed else save_figure(figure, stem, svg)
    save_points(figure, stem.with_suffix(".csv"))
    return [(file.suffix[1:].upper(), file.name) for file in (*files, stem.with_suffix(".csv"))]


def _table(page: Page, out: Path, name: str, title: str, table: Table, caption: str) -> None:
    if not table[1]:
        return
    page.subheading(title)
    folded = {"predicted"}.union(*(study.folded for study in all_studies()))
    with page.fold(f"{len(table[1])} lines") if name in folded else nullcontext():
        page.table(*table, mark=optimizer_color)
    if caption:
        page.paragraph(caption)
    texts = {".md": as_markdown(table, caption), ".tex": as_latex(table, caption), ".csv": as_csv(table)}
    for suffix, text in texts.items():
        write_atomically(out / f"table-{name}{suffix}", text)


def _not_known(page: Page, out: Path, data: ReportData, absent: Sequence[tuple[str, str]], address: Address) -> None:
    """The section on missing results, failed runs and missing data."""
    failed, analysis = data.failed(), data.analysis
    if failed or analysis.notes or absent:
        page.heading("What is not known", "unknown")
    if failed:
        lost = sum(map(has_diverged, failed))
        page.paragraph(
            f"{len(failed)} of {len(data.rows)} runs have no final loss and are in no fit: "
            f"{lost} whose loss was not finite, {len(failed) - lost} unfinished."
        )
        page.table(*failed_table(failed, address), mark=optimizer_color)
    for note in analysis.notes:
        page.paragraph(note)
    if absent:
        page.subheading("Not drawn, and what it takes")
        page.bullets([(stem, how) for stem, how in absent])


def _runs(page: Page, data: ReportData, address: Address) -> None:
    page.heading("Runs", "runs")
    ordered = sorted(data.rows, key=lambda row: (row["params"], row["name"]))
    for opt in dict.fromkeys(row["opt"] for row in data.rows):
        mine = [row for row in ordered if row["opt"] == opt]
        page.subheading(f"{opt}: {len(mine)} runs", f"runs-{opt}")
        with page.fold("show") if len(data.rows) > MANY else nullcontext():
            page.table(*runs_table(mine, address), mark=optimizer_color)


FIGURES: dict[str, tuple[Callable[[ReportData], Figure | MissingFigure], str]] = {
    "compute-saved": (
        saved_figure,
        "Compute saved at equal loss, at each size: at the baseline's final loss where it was reached (above 0), else "
        "at the contender's own final loss (below 0). Bars are 95% intervals over seeds; hollow points have fewer than "
        "three seeds, and their noise is not known.",
    ),
    "compute-saved-laws": (
        gain_figure,
        "Compute saved at equal loss, read off the fitted laws over the losses that both measured; bands are 95% "
        "intervals over resampled runs. Dashed: the laws beyond what was measured.",
    ),
    "loss-compute": (
        law_figure,
        "Final loss against compute, one point per size (mean over seeds, bars from lowest to highest; hollow: one "
        "seed), with the fitted laws and their 95% bands; right: the distance from the baseline at the same size and "
        "horizon.",
    ),
    "residuals": (residual_figure, "Distance of each run from its law; above zero the run was worse."),
    "loss-curves": (
        curves_figure,
        "Validation loss over training at each size, at the best learning rate: mean over seeds, band from lowest to "
        "highest. The first fall is left out.",
    ),
    "lr-law": (
        lr_law_figure,
        "Best learning rate of each size (large points), those whose loss lies within 1% of its loss (wide bars), all "
        "that were tried (small points), and the law through the best few with the 95% band of resampled sizes. "
        "With few rates the law weighs all of them and is drawn towards their middle.",
    ),
    "cost": (
        cost_figure,
        "Device-hours by purpose; right: time per token against the baseline's at the largest common "
        "size, of each optimizer's fastest run by its median step. Wall time, so other jobs on the machine add to it.",
    ),
}
"""File name -> the function that draws, and the caption."""

SECTIONS = (
    PageSection("saved", "Compute saved", ("compute-saved", "compute-saved-laws"), ("saved",)),
    PageSection("laws", "Loss against compute", ("loss-compute", "residuals"), ("laws",)),
    PageSection("curves", "Loss curves", ("loss-curves",)),
    PageSection("tuning", "Tuning", ("lr-law",), ("tuned", "lr-laws", "predicted")),
    PageSection("cost", "Cost", ("cost",), ("cost",)),
)
"""The page without studies."""


def page_sections() -> list[PageSection]:
    """The sections of the page, with those of studies in their places."""
    page = list(SECTIONS)
    for own in (section for study in all_studies() for section in study.sections):
        anchors = [section.anchor for section in page]
        if own.anchor in anchors:
            there = page[at := anchors.index(own.anchor)]
            figures, tables = (
                _inserted(names, more, own.before)
                for names, more in ((there.figures, own.figures), (there.tables, own.tables))
            )
            page[at] = replace(there, figures=figures, tables=tables)
        else:
            page = [*_inserted(page, (own,), next((each for each in page if each.anchor == own.before), None))]
    return page


def _inserted(names: Sequence[Any], more: Sequence[Any], before: Any) -> tuple[Any, ...]:
    """`more` before one of the names, or at the end."""
    at = names.index(before) if before in names else len(names)
    return (*names[:at], *more, *names[at:])
