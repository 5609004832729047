"""Compute saved against planted truths: the contender's curve is the baseline's with 40% less compute."""

import math

import numpy as np
import pytest

from danalab.errors import UserError
from danalab.experiments.loss_laws import LossLaw, fit_joint_laws
from danalab.experiments.saving import (
    compute_gain,
    compute_saved,
    first_crossing,
    interpolated_saving,
    smoothed,
)


def law(compute):
    return 1.7 + 300 * compute**-0.13


X = np.geomspace(1e16, 1e17, 25)


def seeds(rng, scale, n=3):
    """Curves of n seeds: each with an offset of its own and a little noise at each evaluation."""
    curves = [
        law(X / scale) * np.exp(1e-3 * rng.standard_normal() + 2e-4 * rng.standard_normal(len(X)))
        for _ in range(n)
    ]
    return [X] * n, curves


def test_a_planted_saving_of_40_percent_is_found():
    found = compute_saved(X, law(X), X, law(X / 0.6))
    assert found.saved == pytest.approx(0.40, abs=0.002)
    assert found.interval is None, "one seed says nothing of the noise"


@pytest.mark.slow
def test_its_interval_covers_the_truth_in_nine_simulated_ladders_of_ten():
    covered, estimates = 0, []
    for trial in range(200):
        rng = np.random.default_rng(trial)
        found = compute_saved(*seeds(rng, 1.0), *seeds(rng, 0.6), n_bootstrap=100)
        assert found.interval is not None
        covered += 0.40 in found.interval
        estimates.append(found.saved)
    assert np.mean(estimates) == pytest.approx(0.40, abs=0.02)
    assert covered >= 180


@pytest.mark.slow
def test_at_equal_optimizers_the_mean_over_sizes_is_zero_and_one_in_twenty_intervals_excludes_it():
    found = []
    for trial in range(200):
        rng = np.random.default_rng(trial)
        found.append(compute_saved(*seeds(rng, 1.0), *seeds(rng, 1.0), n_bootstrap=60))
    assert np.mean([each.saved for each in found]) == pytest.approx(0.0, abs=0.004)
    assert 60 < sum(each.is_reached for each in found) < 140, (
        "a table of the sizes that were reached would be selected"
    )
    assert sum(0.0 not in each.interval for each in found) <= 12


def test_runs_that_were_evaluated_elsewhere_are_averaged_all_the_same():
    other = np.geomspace(0.9e16, 1e17, 31)
    found = compute_saved(X, law(X), [X, other], [law(X / 0.6) * 1.002, law(other / 0.6) / 1.002])
    assert found.saved == pytest.approx(0.40, abs=0.005)
    with pytest.raises(UserError, match="nothing in common"):
        compute_saved(X, law(X), [X, 100 * X], [law(X), law(100 * X)])


def test_a_curve_that_never_crosses_is_compared_at_its_own_final_loss():
    found = compute_saved(X, law(X), X, law(X * 0.9))
    assert found.saved == pytest.approx(1 - 1 / 0.9, abs=0.002)
    assert not found.is_reached
    assert found.behind == pytest.approx(0.9, abs=0.002)


def test_a_crossing_before_the_first_evaluation_is_a_bound():
    found = compute_saved(X, law(X), X, law(X) - 10)
    assert (found.saved, found.is_bound) == (pytest.approx(0.9), True)
    found = compute_saved(X, law(X), X, law(X) + 10)
    assert (found.saved, found.is_bound, found.behind) == (pytest.approx(-9.0), True, pytest.approx(0.1))


def test_noise_between_evaluations_moves_no_crossing():
    x = np.geomspace(1e16, 1e17, 200)
    found, first = [], []
    for trial in range(40):
        rng = np.random.default_rng(trial)
        base, other = ((law(x / scale) * np.exp(6e-3 * rng.standard_normal(len(x)))) for scale in (1.0, 0.6))
        found.append(compute_saved(x, base, x, other).saved)
        first.append(1 - first_crossing(x, other, base[-1]) / x[-1])
    assert np.mean(found) == pytest.approx(0.40, abs=0.02)
    assert np.mean(first) > 0.44, "a first crossing of the curves as they are comes too early"
    assert smoothed(x, law(x)) == pytest.approx(law(x), rel=2e-4)
    assert smoothed(x, np.where(x < 2e16, math.inf, 3.0)).tolist().count(math.inf) == sum(x < 2e16)
    assert smoothed(X[::3], law(X[::3])) == pytest.approx(law(X[::3])), (
        "far between, evaluations stay as they are"
    )


def test_between_measured_points_the_saving_needs_no_law():
    sizes = np.geomspace(1e15, 1e18, 9)
    assert interpolated_saving((sizes, law(sizes)), (sizes, law(sizes / 0.6))) == pytest.approx(
        0.40, abs=0.01
    )
    lucky = law(sizes / 0.6)
    lucky[4] = lucky[6]  # a size that is better than the next ones hides them
    assert 0.40 < interpolated_saving((sizes, law(sizes)), (sizes, lucky)) < 0.75
    assert interpolated_saving((sizes, law(sizes)), (sizes, law(sizes) - 3)) is None


def test_a_contender_that_needs_more_compute_has_a_negative_saving():
    longer = np.geomspace(1e16, 2e17, 30)
    found = compute_saved(X, law(X), longer, law(longer * 0.8))
    assert found.saved == pytest.approx(-0.25, abs=0.002)


@pytest.mark.parametrize(
    ("compute", "loss", "what"),
    [
        ([], [], "at least 1"),
        ([1.0, 2.0], [3.0], "same length"),
        ([0.0], [3.0], "positive"),
        ([1.0], [math.nan], "NaN"),
    ],
)
def test_a_curve_that_cannot_be_meant_is_refused(compute, loss, what):
    with pytest.raises(UserError, match=f"contender.*{what}"):
        compute_saved(X, law(X), np.array(compute), np.array(loss))


def test_a_crossing_is_found_between_two_evaluations_on_the_log_axis():
    curve = np.array([10.0, 1000.0]), np.array([4.0, 3.0])
    assert first_crossing(*curve, 3.5) == pytest.approx(100)
    assert first_crossing(*curve, 2.9) is None
    assert first_crossing(*curve, 4.5) == 10


def ladder(seed, scale):
    sizes = np.repeat(np.geomspace(1e15, 1e18, 5), 3)
    noise = np.exp(1e-3 * np.random.default_rng(seed).standard_normal(len(sizes)))
    return sizes, law(sizes / scale) * noise


def gain(seed, scale, n_bootstrap=40):
    curves = {"adamw": ladder(2 * seed, 1.0), "adana": ladder(2 * seed + 1, scale)}
    laws = fit_joint_laws(curves, n_bootstrap=n_bootstrap)
    return compute_gain(laws["adamw"], laws["adana"], n_points=3)


def test_a_ladders_laws_give_the_planted_saving_with_an_interval():
    found = gain(1, 0.6)
    assert found.mean == pytest.approx(0.40, abs=0.02)
    assert 0.40 in found.interval


def test_the_sign_is_right_when_the_contender_is_worse():
    found = gain(0, 1.3)
    assert found.mean == pytest.approx(-0.30, abs=0.05)
    assert found.interval.high < 0


@pytest.mark.slow
def test_the_interval_from_laws_covers_the_truth_in_nine_simulated_ladders_of_ten():
    assert sum(0.40 in gain(seed, 0.6, 60).interval for seed in range(200)) >= 180


def test_the_published_example_by_hand_has_the_right_sign():
    published = LossLaw("saturated", 2.5, ((0.5, 0.12),), ((1.0, 1e3),), 1.0, np.zeros(1))
    better, worse = published.compute_for(3.40), published.compute_for(3.45)
    assert 1 - worse / better == pytest.approx(0.363, abs=5e-4)
    assert 1 - better / worse < 0
