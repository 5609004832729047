"""Ramps: values in stages, whose sums are what was consumed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danalab.data.order.ramps import Ramp
from danalab.errors import UserError

stages = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 20)), max_size=4).map(
    lambda pairs: tuple((value, sum(n for _, n in pairs[: i + 1])) for i, (value, _) in enumerate(pairs))
)


@given(stages=stages, steps=st.integers(0, 120))
def test_the_total_is_the_sum_of_the_values(stages, steps):
    ramp = Ramp(9, stages)
    assert ramp.total(steps) == sum(ramp.at(step) for step in range(steps))


@given(stages=stages, budget=st.integers(0, 500))
def test_steps_within_a_budget_are_the_most_that_fit(stages, budget):
    ramp = Ramp(9, stages)
    steps = ramp.steps_within(budget)
    assert ramp.total(steps) <= budget < ramp.total(steps + 1)


def test_a_ramp_is_read_as_it_is_written():
    ramp = Ramp.parse("8:1000, 16:3000", 32, "--batch-ramp")
    assert [ramp.at(step) for step in (0, 999, 1000, 2999, 3000)] == [8, 8, 16, 16, 32]
    assert ramp.values == [8, 16, 32]
    assert Ramp.parse(None, 32, "--batch-ramp").at(10**9) == 32


@pytest.mark.parametrize("text", ["", "8", "8:", "x:3", "8:10,16:10", "8:10,4:5", "0:3", "64:3", "8:0", "-8:3", "8:3,"])
def test_what_is_no_ramp_is_refused_by_its_flag(text):
    with pytest.raises(UserError, match="--batch-ramp"):
        Ramp.parse(text, 32, "--batch-ramp")
