"""Rates to begin with, and the next one of a search."""

from __future__ import annotations

from danalab.scaling.optimizers import FACTS, rates_to_try
from danalab.scaling.rate_search import next_rate


def test_every_optimizer_has_rates_to_begin_with():
    for name in FACTS:
        low, middle, high = rates_to_try(name)
        assert 0 < low < middle < high


def test_the_next_rate_is_beyond_the_outermost_best():
    assert next_rate({0.5: 3, 1: 2, 2: 1}) == 4
    assert next_rate({0.5: 1, 1: 2, 2: 3}) == 0.25
    assert next_rate({0.5: 2, 1: 1, 2: 3}) is None
