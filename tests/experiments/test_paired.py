"""Tests paired by seed against SciPy's, and numbers of seeds against published tables."""

import numpy as np
import pytest
from scipy import stats

from danalab.experiments.paired import PairedRuns, paired_tests, seeds_needed


def runs(losses, params=1000, horizon=1.0):
    return PairedRuns("adamw", "adana", params, horizon, tuple(map(tuple, losses)))


def test_on_one_rung_it_is_students_paired_test():
    rng = np.random.default_rng(0)
    shared = 3 + 0.05 * rng.standard_normal((6, 1))
    losses = np.hstack([shared, shared - 0.004]) + 0.003 * rng.standard_normal((6, 2))
    (found,) = paired_tests([runs(losses)])
    expected = stats.ttest_rel(*np.log(losses).T)
    assert found.p_value == pytest.approx(expected.pvalue)
    assert found.difference == pytest.approx(np.mean(losses[:, 0] - losses[:, 1]), rel=0.02)
    assert found.n_seeds == 6
    low, high = expected.confidence_interval(0.95)
    assert (found.interval.low, found.interval.high) == pytest.approx((3 * low, 3 * high), rel=0.03)


def test_each_rung_is_judged_by_its_own_seeds():
    quiet, loud = [(3.0, 2.99), (3.1, 3.09)], [(3.0, 2.9), (3.0, 3.08)]
    assert paired_tests([runs(quiet), runs(loud, horizon=4.0)])[0] == paired_tests([runs(quiet)])[0]


@pytest.mark.parametrize(("effect", "needed"), [(0.5, 34), (0.8, 15), (1.0, 10)])
def test_seeds_needed_are_those_of_the_tables(effect, needed):
    """Sample sizes of a paired t test, two-sided 5%, power 80%: J. Cohen, Statistical Power Analysis."""
    assert seeds_needed(effect, 1.0) == needed
    assert seeds_needed(-effect, 1.0) == needed


def test_one_seed_has_a_difference_and_no_interval():
    (found,) = paired_tests([runs([(3.0, 2.9)])])
    assert (found.interval, found.p_value, found.seeds_needed) == (None, None, None)
    assert found.difference == pytest.approx(0.1, rel=0.01)
