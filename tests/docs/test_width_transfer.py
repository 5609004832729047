"""The table of the best rates over widths is that of the stored rows."""

from __future__ import annotations

import math

import pytest
from bench.width_transfer import PAGE, RESULTS, best_rate, exponent, fill, losses

from danalab.errors import UserError
from danalab.ladder.rows import read_ladder


def test_the_page_shows_the_stored_rows():
    page = PAGE.read_text(encoding="utf-8")
    assert "<!-- width: transfer -->" in page
    assert fill(page, losses(read_ladder(RESULTS))) == page


def test_a_planted_law_of_the_width_is_in_its_interval():
    rates = [1e-3 * 2**k for k in range(-6, 3)]
    by_width = {
        width: {rate: 2.0 + 0.2 * math.log(rate / (2e-3 * (32 / width) ** 0.9)) ** 2 for rate in rates}
        for width in (32, 64, 128, 256)
    }
    assert best_rate(by_width[64]) == pytest.approx(2e-3 * 0.5**0.9)
    slope, interval = exponent(by_width)
    assert slope == pytest.approx(-0.9)
    assert -0.9 in interval or interval.high - interval.low < 1e-9


def test_an_outermost_best_rate_is_refused():
    with pytest.raises(UserError, match="outermost"):
        best_rate({1e-3: 3.0, 2e-3: 2.5, 4e-3: 2.0})
