"""Figures and tables of a ladder with several horizons."""

import math

import pytest
from matplotlib.figure import Figure

from danalab.ladder.analysis import analyse
from danalab.ladder.figures import horizon_loss_figure, multiplier_figure
from danalab.ladder.horizon import times
from danalab.report.data import MissingFigure, ReportData
from danalab.report.figures.laws import law_figure
from danalab.report.headline import verdict
from danalab.report.tables import analysis_tables
from ladder.planted_horizons import SIZES, E, plant_horizons


@pytest.fixture(scope="module")
def data():
    rows = [{**row, "entropy": E, "data_tokens": 10**7} for row in plant_horizons(1.15, noise=5e-4)]
    return ReportData(analyse(rows, n_bootstrap=10), rows)


def test_each_size_has_a_panel_with_points_and_the_law(data):
    for draw in (multiplier_figure, horizon_loss_figure):
        figure = draw(data)
        assert isinstance(figure, Figure)
        assert [axes.get_title() for axes in figure.axes] == ["7k parameters", "14k parameters", "28k parameters"]
        for axes, horizons in zip(figure.axes, SIZES.values(), strict=True):
            points = [line for line in axes.get_lines() if line.get_label() == "adana"]
            assert [len(line.get_xdata()) for line in points] == [len(horizons)]
    tokens = horizon_loss_figure(data).axes[0].get_lines()[0].get_xdata()
    assert list(tokens) == [20 * 7_000 * f for f in SIZES[7_000]]
    law_figure(data)  # no law of compute is drawn


def test_tables_and_sentences_answer_the_questions(data):
    tables = {name: table for name, (_, table) in analysis_tables(data.analysis).items()}
    ((opt, p, _, *inside),) = tables["horizon-exponents"][1]
    assert (opt, inside[:2]) == ("adana", ["no", "yes"]), "1 is excluded, 1.15 is not"
    assert abs(float(p) - 1.15) < 0.1
    assert len(tables["horizon-multipliers"][1]) == 10
    assert sum("extrapolated" in line[5] for line in tables["horizon-multipliers"][1]) >= 3
    assert len(tables["horizon-pairs"][1]) == 3
    assert all(line[1:3] == ["4", "3"] for line in tables["horizon-budgets"][1])
    said = " ".join(verdict(data.analysis))
    assert "Every optimizer had the same number of trials on the same number of dials" in said
    assert "contains the exact entropy of the data, 2.3000" in said
    assert "up to 0.9 epochs" in said


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.2345, "1.23"), (14.945, "15"), (2.6e22, "> 100"), (math.inf, "> 100"), (1e-9, "< 1/100")],
)
def test_a_multiplier_that_means_nothing_is_a_bound(value, text):
    assert times(value) == text


def test_one_horizon_has_neither():
    rows = plant_horizons(sizes={7_000: (1,)})
    data = ReportData(analyse(rows, n_bootstrap=0), rows)
    assert isinstance(multiplier_figure(data), MissingFigure)
    assert isinstance(horizon_loss_figure(data), MissingFigure)
    tables = analysis_tables(data.analysis)
    assert not any(lines for name, (_, (_, lines)) in tables.items() if name.startswith("horizon"))
