"""The report with the studies of the annexes, in their places, and without."""

import pytest

from danalab import plugins
from danalab.ladder.analysis import analyse
from danalab.ladder.studies import STUDIES, LadderStudy, PageSection
from danalab.registry import Registry
from danalab.report.data import MissingFigure, ReportData
from danalab.report.headline import remarks
from danalab.report.ladder_report import page_sections, write_report
from danalab.report.tables import analysis_tables
from ladder.planted_horizons import plant_horizons

PAGE = """
saved: compute-saved, compute-saved-laws; saved
horizon: horizon-gain, horizon-loss; horizon-exponents, horizon-multipliers, horizon-pairs, horizon-budgets
batch: batch; batches, critical-batch, batch-pairs
laws: loss-compute, residuals; laws, registered
curves: loss-curves;
tuning: lr-sensitivity, lr-curvature, lr-law; tuned, tolerance, shared-curvature, lr-laws, predicted, \
rate-exponents, decay-exponents
inside: schedules, kappa, gamma3, tau, snr-clipping;
cost: cost; cost
"""
"""PageSection: figures; tables."""
PRINTED = """tuned batches critical-batch batch-pairs saved horizon-exponents horizon-multipliers horizon-pairs
horizon-budgets laws registered lr-laws predicted rate-exponents decay-exponents tolerance shared-curvature"""


@pytest.fixture
def rows():
    return plant_horizons(sizes={7_000: (1, 4), 14_000: (1,)}, seeds=1)


def test_every_figure_and_table_has_its_place(rows):
    shown = [f"{each.anchor}: {', '.join(each.figures)}; {', '.join(each.tables)}".strip() for each in page_sections()]
    assert shown == PAGE.strip().splitlines()
    assert list(analysis_tables(analyse(rows, n_bootstrap=0))) == PRINTED.split()


def test_a_report_is_written_without_annexes(rows, tmp_path, monkeypatch):
    monkeypatch.setattr(plugins, "ANNEXES", "annexes_that_are_not_installed")
    monkeypatch.setattr("danalab.ladder.studies.STUDIES", Registry(STUDIES.kind))
    analysis = analyse(rows, n_bootstrap=0)
    assert not analysis.studies
    page = write_report(ReportData(analysis, rows), tmp_path).read_text(encoding="utf-8")
    assert "Compute saved" in page
    assert "Token multiplier" not in page


class Count(LadderStudy):
    name = "count"
    sections = (
        PageSection("count", "Counted", tables=("count",), before="curves"),
        PageSection("laws", "Loss against compute", ("runs-of-all",), before="residuals"),
    )
    tables_before = "laws"
    files = ("count.txt",)

    def analyse_optimizer(self, analysis, opt, rows, n_bootstrap, seed):
        analysis.studies.setdefault(self.name, {})[opt] = sum(row["opt"] == opt for row in rows)

    def as_dict(self, analysis):
        return {"count": analysis.studies[self.name]}

    def tables(self, analysis, address, folder):
        lines = [[opt, str(count)] for opt, count in analysis.studies[self.name].items()]
        return {"count": ("Runs of each optimizer", (["optimizer", "runs"], lines))}

    def figures(self):
        return {"runs-of-all": (lambda data: MissingFigure("nothing can draw it"), "Runs.")}

    def sentences(self, analysis):
        return [f"{sum(analysis.studies[self.name].values())} runs were counted."]


def test_a_study_of_ones_own_is_in_the_tables_the_page_the_json_and_the_sentences(rows, tmp_path, monkeypatch):
    monkeypatch.setattr(plugins, "ANNEXES", "annexes_that_are_not_installed")
    monkeypatch.setattr("danalab.ladder.studies.STUDIES", own := Registry(STUDIES.kind))
    own.add(Count.name, Count())
    analysis = analyse(rows, n_bootstrap=0)
    assert analysis.as_dict()["count"] == {"adamw": 12, "adana": 12}
    assert list(analysis_tables(analysis))[2:4] == ["count", "laws"]
    assert remarks(analysis)[0] == "24 runs were counted."
    assert [each.anchor for each in page_sections()] == ["saved", "laws", "count", "curves", "tuning", "cost"]
    assert page_sections()[1].figures == ("loss-compute", "runs-of-all", "residuals")
    (tmp_path / "count.txt").write_text("24")
    page = write_report(ReportData(analysis, rows, folder=tmp_path), tmp_path / "out", packed=True)
    assert all(words in page.read_text(encoding="utf-8") for words in ("Runs of each optimizer", "nothing can draw it"))
    assert (tmp_path / "out" / "count.txt").read_text() == "24"
    assert (tmp_path / "out" / "table-count.csv").is_file()
