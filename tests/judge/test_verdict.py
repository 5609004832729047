"""The test that one may look at any time: its error under every way of stopping, its power, its closed form."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from danalab.judge.verdict import (
    FIRST_SHARE,
    PRIORS,
    STAKES,
    bounds,
    decide,
    decisions,
    log_bayes_factor,
    log_wealth,
    normal_bounds,
    spent,
    warnings,
)

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
    low, high = normal_bounds(xs, alpha)
    if math.isfinite(low):
        for end in (low, high):
            assert log_evidence(xs, end) == pytest.approx(-math.log(alpha), rel=1e-6)
    found = bounds(xs, alpha, 6.0)
    assert found.low <= low < found.mean < high <= found.high
    assert found.normal == (low, high)


@given(NUMBERS, st.floats(-4.9, 4.9))
@settings(max_examples=30, deadline=None)
def test_the_wealth_is_what_the_bets_have_made_and_falls_where_the_mean_is_lower(xs, mean):
    made = sum(w * math.prod(1 - f + f * (5 - x) / (5 - mean) for x in xs) for f, w in STAKES.items())
    assert math.exp(log_wealth(np.array(xs), mean, 5.0)[-1]) == pytest.approx(made, rel=1e-9)
    assert log_wealth(np.array(xs), mean - 0.1, 5.0)[-1] <= log_wealth(np.array(xs), mean, 5.0)[-1]
    assert sum(STAKES.values()) == 1


@pytest.mark.parametrize("mean", [-0.3, 0.0, 0.2])
def test_no_bet_on_lower_differences_wins_on_average_where_the_mean_is_as_high(mean):
    """The largest average return over all distributions below the bound is at two points: exactly 1 for every one."""
    for x in np.linspace(-3, mean - 1e-3, 7):
        share = (mean - x) / (0.6 - x)  # of the bound, for a mean of `mean`
        returns = [math.exp(log_wealth(np.array([value]), mean, 0.6)[0]) for value in (x, 0.6)]
        assert (1 - share) * returns[0] + share * returns[1] == pytest.approx(1, abs=1e-9)


@given(NUMBERS.map(lambda xs: xs + [min(xs)] * 8), st.sampled_from([2.5, 3.0, 6.0]), st.floats(0.01, 2))
@settings(max_examples=15, deadline=None)
def test_decisions_are_those_of_the_interval_and_of_every_shorter_look(xs, bound, margin):
    made = decisions(xs, 0.05, margin, bound)
    for n in (len(xs) // 2 + 1, len(xs)):
        found = bounds(xs[:n], 0.05, bound)
        if min(abs(abs(end) - edge) for end in (found.low, found.high) for edge in (0, margin)) > 1e-6:
            equal = -margin < found.low and found.high < margin
            outside = "better" if found.high < 0 else "worse" if found.low > 0 else "undecided"
            assert made[n - 1] == ("no difference" if equal else outside)
        assert decide(xs[:n], 0.05, margin, bound) == made[n - 1]


def test_a_seed_beyond_the_bound_rules_out_the_answer_that_it_speaks_against():
    better = [-0.3 - 0.001 * i for i in range(40)]
    assert decide(better, 0.05, 0.01, 0.6) == "better"
    assert decide([*better, 0.59], 0.05, 0.01, 0.6) == "better"
    assert decide([*better, 0.61], 0.05, 0.01, 0.6) == "undecided"
    assert decide([-x for x in [*better, 0.61]], 0.05, 0.01, 0.6) == "undecided"
    assert decide([*better, -0.61], 0.05, 0.01, 0.6) == "better"
    assert bounds([*better, 0.61], 0.05, 0.6).high >= 0.6
    assert decide([0.0] * 400 + [-0.61], 0.05, 0.01, 0.6) == "undecided", "nor is there no difference"


def test_stuck_seeds_two_groups_and_skew_are_warned_of_and_normal_differences_rarely():
    rng = np.random.default_rng(3)
    normal = 0.03 * rng.standard_normal((200, 40))
    assert sum(bool(warnings(row[:n], 0.6)) for row in normal for n in (8, 40)) <= 24
    few = list(normal[0, :20])
    assert "2 of 20 pairs lie far" in " ".join(warnings([*few[:18], 0.4, 0.5], 0.6))
    assert "1 of 20 pairs speak against the others by more than the bound 0.6" in " ".join(
        warnings([x - 0.3 for x in few[:19]] + [0.7], 0.6)
    )
    assert "two groups, of 8 and 12" in " ".join(warnings([*few[:12], *(x - 0.4 for x in few[12:])], 0.6))
    assert "skewed (+" in " ".join(warnings(list(0.03 * rng.exponential(size=60)), 0.6))
    assert warnings([], 0.6) == warnings([0.1] * 9, 0.6) == ()


def test_without_a_difference_at_most_alpha_decide_however_often_one_looks():
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(80):
        xs = rng.standard_normal(40)
        wrong += "better" in (made := decisions(xs, 0.05, 1e-9, 4.0)) or "worse" in made
    assert wrong <= 4  # 5%; about 2 are expected, since the bound holds for endless looking


def test_a_difference_of_one_deviation_is_found_in_a_few_tens_of_pairs():
    rng = np.random.default_rng(1)
    needed = []
    for _ in range(100):
        xs = rng.standard_normal(60) - 1
        needed.append([*decisions(xs, 0.05, 0.1, 4.0), "better"].index("better") + 1)
    assert np.mean(np.array(needed) <= 45) > 0.95
    assert np.median(needed) <= 30


def test_a_difference_as_large_as_the_bound_needs_seven_pairs_and_never_fewer():
    made = decisions([-0.6 + 0.001 * i for i in range(8)], 0.05, 0.01, 0.6)
    assert made == ["undecided"] * 6 + ["better"] * 2


def test_what_counts_as_equal_is_said_to_be_equal():
    rng = np.random.default_rng(2)
    decisions = [decide(0.001 * rng.standard_normal(60), 0.05, 0.01, 0.1) for _ in range(20)]
    assert decisions == ["no difference"] * 20


@given(st.floats(1e-6, 1 - 1e-6), st.integers(1, 500))
def test_any_number_of_questions_shares_one_alpha(alpha, looks):
    """Exactly, as rational numbers: 0.8 + 0.2 (1 - 1 / K) < 1."""
    share = Fraction(FIRST_SHARE)
    exact = [share if k == 1 else (1 - share) / (k * (k - 1)) for k in range(1, looks + 1)]
    assert sum(exact) == share + (1 - share) * (1 - Fraction(1, looks)) < 1
    assert [spent(alpha, k) for k in range(1, looks + 1)] == pytest.approx([float(alpha * each) for each in exact])
    assert math.fsum(spent(alpha, k) for k in range(1, looks + 1)) < alpha
