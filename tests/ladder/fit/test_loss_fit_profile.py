"""The interval of E that the points do not contradict."""

import math

import numpy as np
import pytest

from danalab.ladder.fit.loss_fit import profile_interval
from danalab.ladder.fit.loss_law import LossLaw

N = 20
CHI2 = 3.841458820694124
"""95% of the chi-squared distribution with one degree of freedom."""


def interval_and_refits(best, floor=4.0):
    """The interval for residuals of exp(|E - best|) / 1000, and the values of E that were fitted."""
    fitted = []

    def law(E):
        return [LossLaw("chinchilla", E, (), (), 1.0, np.full(N, 1e-3 * math.exp(abs(E - best))))]

    def refit(E, near):
        fitted.append(E)
        return law(E)

    return profile_interval(refit, law(best), floor, 0.95), fitted


def test_it_ends_where_the_likelihood_ratio_reaches_its_limit():
    found, _ = interval_and_refits(1.0)
    half = CHI2 / (2 * N)  # 2 n log(b / b_best) = 2 n |E - best|
    assert found.low == pytest.approx(1 - half, abs=1 / 12 / 32)
    assert found.high == pytest.approx(1 + half, abs=3 / 12 / 32)


@pytest.mark.parametrize("best", [0.0, 1e-9, 3e-5])
def test_nothing_is_fitted_twice_below_a_best_value_of_zero(best):
    found, fitted = interval_and_refits(best)
    assert [value for value in fitted if value <= best] == [0.0]
    assert found.low == 0.0
