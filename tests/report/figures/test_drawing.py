"""What figures say on their axes."""

import pytest

from danalab.report.figures.drawing import canvas, group, save_points
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
