"""Gains against the length of a run: tables of docs/horizon.md and notes/horizon.md, and their figures.

danalab ladder bench/horizon_cpu.yaml                             # two hours of one core
danalab report ladders/horizon_cpu --out bench/results/horizon_cpu --pack
python bench/horizon.py                                           # from the stored rows
"""

from functools import cache
from pathlib import Path

from danalab.ladder.analysis import analyse
from danalab.ladder.figures import horizon_loss_figure, multiplier_figure
from danalab.ladder.rows import read_ladder
from danalab.report.data import ReportData
from danalab.report.formats import as_markdown
from danalab.report.headline import remarks
from danalab.report.tables import analysis_tables, tuned_table
from danalab_bench.pages import cost, fill_parts

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "horizon_cpu"
PAGES = [ROOT / "docs" / "horizon.md", ROOT / "notes" / "horizon.md"]
FIGURES = {"horizon_cpu": multiplier_figure, "horizon_loss_cpu": horizon_loss_figure}


@cache
def data() -> ReportData:
    rows = read_ladder(RESULTS)
    return ReportData(analyse(rows), rows)


def fill(page: str) -> str:
    """The page with the tables of the stored rows."""
    found = data().analysis
    parts = {name: as_markdown(table) for name, (_, table) in analysis_tables(found).items()}
    parts["horizon-sentences"] = "\n".join([*remarks(found), *found.studies["horizon"].notes]) + "\n"
    parts["tuned"] = as_markdown(tuned_table(found.opts, found.tuned))
    parts["cost"] = cost(data().rows)
    return fill_parts(page, "horizon", parts)


if __name__ == "__main__":
    for file in PAGES:
        file.write_text(fill(file.read_text(encoding="utf-8")), encoding="utf-8")
    for name, draw in FIGURES.items():
        draw(data()).savefig(ROOT / "docs" / "figures" / f"{name}.png")
