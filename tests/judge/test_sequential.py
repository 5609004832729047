"""The test that one may look at any time: its error under every way of stopping, its power, its closed form."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from danalab.judge.sequential import FIRST_SHARE, PRIORS, bounds, decide, log_bayes_factor, spent

NUMBERS = st.lists(st.floats(-5, 5).map(lambda x: round(x, 3)), min_size=3, max_size=12).filter(
    lambda xs: np.std(xs) > 0.05
)


def log_evidence(xs, mean=0.0):
    return log_bayes_factor(len(xs), stats.ttest_1samp(xs, mean).statistic ** 2 / (len(xs) - 1))


@given(NUMBERS)
@settings(max_examples=8, deadline=None)
def test_the_evidence_is_the_ratio_of_the_two_marginal_likelihoods(xs):
    """Against the integral over the effect: noncentral t over central t."""
    n = len(xs)
    t = math.sqrt(n) * np.mean(xs) / np.std(xs, ddof=1)

    def prior(effect):
        return np.mean([stats.norm.pdf(effect, scale=g**0.5) for g in PRIORS])

    ratio, _ = integrate.quad(
        lambda effect: stats.nct.pdf(t, n - 1, math.sqrt(n) * effect) * prior(effect), -40, 40, limit=400
    )
    assert log_evidence(xs) == pytest.approx(math.log(ratio / stats.t.pdf(t, n - 1)), abs=2e-4)


@given(NUMBERS, st.sampled_from([0.01, 0.05, 0.2]))
@settings(max_examples=50, deadline=None)
def test_the_evidence_at_the_ends_of_the_interval_is_one_over_alpha(xs, alpha):
    found = bounds(xs, alpha)
    if math.isfinite(found.low):
        for end in (found.low, found.high):
            assert log_evidence(xs, end) == pytest.approx(-math.log(alpha), rel=1e-6)
    assert found.low < found.mean < found.high


def test_without_a_difference_at_most_alpha_decide_however_often_one_looks():
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(80):
        xs = rng.standard_normal(40)
        wrong += any(decide(xs[:n], 0.05, 1e-9) in ("better", "worse") for n in range(3, 41))
    assert wrong <= 4  # 5%; about 2 are expected, since the bound holds for endless looking


def test_a_difference_of_one_deviation_is_found_in_a_few_tens_of_pairs():
    rng = np.random.default_rng(1)
    needed = []
    for _ in range(100):
        xs = rng.standard_normal(60) - 1
        needed.append(next((n for n in range(3, 61) if decide(xs[:n], 0.05, 0.1) == "better"), 61))
    assert np.mean(np.array(needed) <= 30) > 0.95
    assert np.median(needed) <= 16


def test_three_pairs_are_enough_for_a_large_difference():
    assert decide([-0.0891, -0.0780, -0.0798], 0.05, 0.01) == "better"


def test_what_counts_as_equal_is_said_to_be_equal():
    rng = np.random.default_rng(2)
    decisions = [decide(0.001 * rng.standard_normal(12), 0.05, 0.01) for _ in range(20)]
    assert decisions == ["no difference"] * 20


@given(st.floats(1e-6, 1 - 1e-6), st.integers(1, 500))
def test_any_number_of_questions_shares_one_alpha(alpha, looks):
    """Exactly, as rational numbers: 0.8 + 0.2 (1 - 1 / K) < 1."""
    share = Fraction(FIRST_SHARE)
    exact = [share if k == 1 else (1 - share) / (k * (k - 1)) for k in range(1, looks + 1)]
    assert sum(exact) == share + (1 - share) * (1 - Fraction(1, looks)) < 1
    assert [spent(alpha, k) for k in range(1, looks + 1)] == pytest.approx([float(alpha * each) for each in exact])
    assert math.fsum(spent(alpha, k) for k in range(1, looks + 1)) < alpha
