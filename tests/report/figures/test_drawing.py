"""What figures say on their axes."""

import pytest
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from danalab.report.figures.drawing import canvas, group, save_figure, save_points
from danalab.report.formats import fraction


@pytest.mark.parametrize(
    ("number", "words"),
    [(4, "4"), (1, "1"), (0.5, "1/2"), (0.0625, "1/16"), (0.3, "0.3"), (1.5, "1.5"), (1 / 3, "1/3")],
)
def test_a_factor_is_said_as_a_fraction_where_it_is_one(number, words):
    assert fraction(number) == words


def test_numbers_of_a_figure_say_each_point_once(tmp_path):
    figure, axes = canvas("x", "y")
    group(axes, "adana", [(1, [3.0]), (2, [2.0, 2.5])], "adana")
    save_points(figure, tmp_path / "points.csv")
    assert (tmp_path / "points.csv").read_text().splitlines()[1:] == [",adana,1,3", ",adana,2,2.25"]


def test_a_figure_is_laid_out_once_for_its_three_formats_and_keeps_its_layout(tmp_path, monkeypatch):
    done, execute = [], ConstrainedLayoutEngine.execute
    monkeypatch.setattr(ConstrainedLayoutEngine, "execute", lambda *given: (done.append(1), execute(*given)))
    figure = Figure(layout="constrained")
    figure.add_subplot().set_xlabel("x")
    engine = figure.get_layout_engine()
    assert [file.stat().st_size > 0 for file in save_figure(figure, tmp_path / "a")] == [True] * 3
    assert len(done) == 1
    assert figure.get_layout_engine() is engine
