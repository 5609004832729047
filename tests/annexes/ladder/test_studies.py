"""The report with the studies of the annexes, in their places, and without."""

import pytest

from danalab import plugins
from danalab.ladder.analysis import analyse
from danalab.ladder.studies import STUDIES
from danalab.registry import Registry
from danalab.report.data import ReportData
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
