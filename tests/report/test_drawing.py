"""What figures say on their axes."""

import pytest

from danalab.report.drawing import fraction


@pytest.mark.parametrize(
    ("number", "words"),
    [(4, "4"), (1, "1"), (0.5, "1/2"), (0.0625, "1/16"), (0.3, "0.3"), (1.5, "1.5"), (1 / 3, "1/3")],
)
def test_a_factor_is_said_as_a_fraction_where_it_is_one(number, words):
    assert fraction(number) == words
