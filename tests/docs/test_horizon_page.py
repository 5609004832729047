"""Tables of horizon.md and batch.md, in docs/ and notes/, are those of the committed rows; `python
tests/docs/test_horizon_page.py` writes them, with `batch` only those of that name."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from danalab.ladder.analysis import analyse
from danalab.ladder.rows import read_ladder
from danalab.report.data import ReportData, hours_of
from danalab.report.figures.drawing import save_figure
from danalab.report.formats import as_markdown
from danalab.report.headline import remarks
from danalab.report.tables import analysis_tables, tuned_table
from danalab.ladder.figures import batch_figure, horizon_loss_figure, multiplier_figure

ROOT = Path(__file__).parents[2]
PAGES = {
    "horizon": {"horizon_cpu": multiplier_figure, "horizon_loss_cpu": horizon_loss_figure},
    "batch": {"batch_cpu": batch_figure},
}
"""Page -> its figures; rows are those of bench/results/PAGE_cpu."""
_PART = re.compile(r"(<!-- (?:horizon|batch): ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def stored() -> list[str]:
    """Pages whose rows are stored."""
    return [page for page in PAGES if (ROOT / "bench" / "results" / f"{page}_cpu").is_dir()]


def analysed(page: str) -> ReportData:
    rows = read_ladder(ROOT / "bench" / "results" / f"{page}_cpu")
    return ReportData(analyse(rows), rows)


def texts_of(page: str) -> dict[Path, str]:
    """The page and its appendix."""
    files = [ROOT / folder / f"{page}.md" for folder in ("docs", "notes")]
    return {file: file.read_text(encoding="utf-8") for file in files}


def written(page: str, data: ReportData) -> dict[Path, str]:
    """The page and its appendix with the tables of the rows."""
    found = data.analysis
    parts = {name: as_markdown(table) for name, (_, table) in analysis_tables(found).items()}
    horizon = found.studies.get("horizon")
    parts[f"{page}-sentences"] = "\n".join([*remarks(found), *(horizon.notes if horizon else ())]) + "\n"
    parts["tuned"] = as_markdown(tuned_table(found.opts, found.tuned))
    parts["cost"] = f"{len(data.rows)} runs, {sum(map(hours_of, data.rows)):.1f} CPU hours without evaluation.\n"
    texts = texts_of(page)
    return {file: _PART.sub(lambda match: match[1] + parts[match[2]] + match[3], texts[file]) for file in texts}


@pytest.mark.slow
@pytest.mark.parametrize("page", stored())
def test_the_page_shows_the_results_of_the_committed_rows(page):
    assert written(page, analysed(page)) == texts_of(page)


if __name__ == "__main__":
    for page in sys.argv[1:] or stored():
        data = analysed(page)
        for file, text in written(page, data).items():
            file.write_text(text, encoding="utf-8")
        for name, draw in PAGES[page].items():
            figure = draw(data)
            if not hasattr(figure, "how"):
                save_figure(figure, ROOT / "docs" / "figures" / name)  # pyright: ignore[reportArgumentType]
                for suffix in ("svg", "pdf"):
                    (ROOT / "docs" / "figures" / f"{name}.{suffix}").unlink()
