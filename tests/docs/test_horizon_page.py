"""The tables of docs/horizon.md are those of the committed rows; `python tests/docs/test_horizon_page.py` writes it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from danalab.ladder.analysis import analyse
from danalab.ladder.rows import read_ladder
from danalab.report.data import ReportData
from danalab.report.figures.drawing import save_figure
from danalab.report.figures.horizon import horizon_loss_figure, multiplier_figure
from danalab.report.formats import as_markdown
from danalab.report.headline import budget_sentence, entropy_sentence, epochs_sentence
from danalab.report.tables import analysis_tables, tuned_table

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "horizon.md"
ROWS = ROOT / "bench" / "results" / "horizon_cpu"
_PART = re.compile(r"(<!-- horizon: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def analysed() -> ReportData:
    rows = read_ladder(ROWS)
    return ReportData(analyse(rows), rows)


def written(data: ReportData) -> str:
    """The page with the tables of the rows."""
    found = data.analysis
    assert found.horizon is not None
    said = [budget_sentence(found.horizon), entropy_sentence(found), epochs_sentence(found), *found.horizon.notes]
    parts = {
        name: as_markdown(table)
        for name, (_, table) in analysis_tables(found).items()
        if ("horizon" in name or "exponents" in name) and table[1]
    }
    parts["horizon-sentences"] = "\n".join(filter(None, said)) + "\n"
    parts["tuned"] = as_markdown(tuned_table(found.opts, found.tuned))
    return _PART.sub(lambda match: match[1] + parts[match[2]] + match[3], PAGE.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_page_shows_the_results_of_the_committed_rows():
    assert written(analysed()) == PAGE.read_text(encoding="utf-8")


if __name__ == "__main__":
    data = analysed()
    PAGE.write_text(written(data), encoding="utf-8")
    for name, draw in (("horizon_cpu", multiplier_figure), ("horizon_loss_cpu", horizon_loss_figure)):
        figure = draw(data)
        if not hasattr(figure, "how"):
            save_figure(figure, ROOT / "docs" / "figures" / name)  # pyright: ignore[reportArgumentType]
            for suffix in ("svg", "pdf"):
                (ROOT / "docs" / "figures" / f"{name}.{suffix}").unlink()
