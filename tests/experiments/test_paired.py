"""Tests paired by seed against SciPy's."""

import numpy as np
import pytest
from bench.judge_power import seeds_needed
from scipy import stats

from danalab.experiments.paired import paired_t


def test_on_one_rung_it_is_students_paired_test():
    rng = np.random.default_rng(0)
    shared = 3 + 0.05 * rng.standard_normal((6, 1))
    losses = np.hstack([shared, shared - 0.004]) + 0.003 * rng.standard_normal((6, 2))
    difference, interval, p_value = paired_t([tuple(each) for each in losses])
    expected = stats.ttest_rel(*np.log(losses).T)
    assert p_value == pytest.approx(expected.pvalue)
    assert difference == pytest.approx(np.mean(losses[:, 0] - losses[:, 1]), rel=0.02)
    low, high = expected.confidence_interval(0.95)
    assert (interval.low, interval.high) == pytest.approx((3 * low, 3 * high), rel=0.03)


@pytest.mark.parametrize(("effect", "needed"), [(0.5, 34), (0.8, 15), (1.0, 10)])
def test_seeds_needed_are_those_of_the_tables(effect, needed):
    """Sample sizes of a paired t test, two-sided 5%, power 80%: J. Cohen, Statistical Power Analysis."""
    assert seeds_needed(effect, 0.05) == needed


def test_one_seed_has_a_difference_and_no_interval():
    difference, interval, p_value = paired_t([(3.0, 2.9)])
    assert (interval, p_value) == (None, None)
    assert difference == pytest.approx(0.1, rel=0.01)
