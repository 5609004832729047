"""Intervals of laws where learning rates were tuned: resamples choose the rate again."""

import numpy as np
import pytest
from scipy import stats

from danalab.ladder import compute_saved, fit_joint_laws
from danalab.ladder.fit.statistics import Interval, Variance, noise_law, resampled_freedom, sum_interval
from danalab.ladder.fit.tuning import SelectionNoise, TunedSize, retuned
from danalab.ladder.saving import compute_gain, first_crossing

C = np.geomspace(1e14, 1e18, 6)
MULTIPLIERS = np.array([0.25, 0.5, 1.0, 2.0, 4.0])


def law(compute):
    return 1.7 + 300 * compute**-0.13


def ladder(rng, noise, trial_seeds=1):
    """Sizes with five trials of one seed each, or of several, and two more seeds at the best."""
    excess, sizes = 0.02 / 3 * np.log(MULTIPLIERS) ** 2, []
    for best in law(C):
        every = excess + noise * rng.standard_normal((trial_seeds, 5))
        trials = best * np.exp(every.mean(axis=0))
        chosen = int(np.argmin(trials))
        more = excess[chosen] + noise * rng.standard_normal(2)
        seeds = best * np.exp(np.append(every[:, chosen], more))
        sizes.append(TunedSize(1e-3 * MULTIPLIERS, trials, chosen, seeds, trial_seeds))
    return sizes


def test_a_resample_chooses_another_rate_where_noise_makes_it_the_best():
    rng = np.random.default_rng(0)
    drawn = np.array([retuned(ladder(np.random.default_rng(1), 0.01)).losses(rng) for _ in range(200)])
    kept = np.array([retuned(ladder(np.random.default_rng(1), 1e-5)).losses(rng) for _ in range(200)])
    assert drawn.shape == (200, 18)
    assert np.log(kept).std() == pytest.approx(np.log(np.repeat(law(C), 3)).std(), rel=1e-3), (
        "no noise, no other choice"
    )
    firsts, others = np.log(drawn[:, ::3]).mean(), np.log(np.delete(drawn, np.s_[::3], axis=1)).mean()
    assert firsts < others - 0.002, "the first seed is the luckiest of its trials"


def test_without_a_second_seed_or_a_second_rate_nothing_is_known_of_the_choice():
    one = TunedSize(np.array([1e-3, 2e-3]), np.array([3.0, 3.1]), 0, np.array([3.0]))
    assert retuned([one, one]) is None
    assert retuned([TunedSize(np.array([1e-3]), np.array([3.0]), 0, np.array([3.0, 3.1]))]) is None


@pytest.mark.parametrize("trial_seeds", [1, 2])
def test_the_variance_that_a_choice_adds_is_that_of_tuned_means_beyond_plain_ones(trial_seeds):
    noise, rng = 2e-3, np.random.default_rng(2)
    ladders = [ladder(rng, noise, trial_seeds) for _ in range(300)]
    tuned = [
        np.log(size.seeds).mean() - np.log(best) for each in ladders for size, best in zip(each, law(C), strict=True)
    ]
    seeds = trial_seeds + 2
    added = np.var(tuned) - noise**2 / seeds
    assert added > 0.05 * noise**2
    choices = [retuned(each).selection(0, 200, rng) for each in ladders]
    assert choices[0].freedom == 6 * (seeds - 1)
    assert np.mean([each.shifts.var() for each in choices]) == pytest.approx(added, rel=0.3)
    kept = retuned(ladder(rng, 1e-5, trial_seeds)).selection(0, 4000, rng)
    assert kept.shifts.var() < 0.2 * 1e-10 / seeds


def test_the_error_of_a_resampled_error_counts():
    assert resampled_freedom(24, 60) == pytest.approx(1 / (1 / 24 + 1 / 59))
    assert resampled_freedom(24, 10**9) == pytest.approx(24)
    # The relative variance of an estimated variance is 2 / freedom.
    rng = np.random.default_rng(0)
    found = [np.var(rng.normal(0, np.sqrt(rng.chisquare(8) / 8), 20), ddof=1) for _ in range(20000)]
    assert 2 / np.var(found) == pytest.approx(resampled_freedom(8, 20), rel=0.12)
    one, two = Variance(3.0, 5), Variance(1.0, 2)
    both = sum_interval(7.0, [one, two])
    freedom = 4.0**2 / (3.0**2 / 5 + 1.0**2 / 2)
    assert both.high - 7 == pytest.approx(2 * stats.t.ppf(0.975, freedom)), "Welch"


def curves(size, index, rng):
    """The validation curves of a size's seeds, with a little noise at each evaluation."""
    x = C[index] * np.geomspace(0.1, 1, 25)
    return [x] * 3, [law(x) * loss / law(C[index]) * np.exp(1e-5 * rng.standard_normal(25)) for loss in size.seeds]


def test_the_interval_of_a_size_contains_the_choice_of_its_rate():
    x = np.geomspace(0.1, 1, 25) * 1e16
    same = [[x] * 3, [law(x)] * 3] * 2
    assert compute_saved(*same, n_bootstrap=50).interval == Interval(0.0, 0.0, 0.95), "seeds without noise"
    choice = SelectionNoise(np.array([0.0, 0.01] * 50), 12)
    found = compute_saved(*same, baseline_choice=choice, n_bootstrap=50).interval
    ratio = np.log(first_crossing(x, law(x), law(x[-1]) * np.exp(0.01)) / x[-1])
    error = abs(ratio) / 2 * np.sqrt(100 / 99)
    freedom = resampled_freedom(12, 100)
    assert np.log(1 - found.low) == pytest.approx(stats.t.ppf(0.975, freedom) * error, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [2e-3, 6e-3])
def test_at_a_size_equal_tuned_optimizers_are_told_apart_in_one_of_20(noise):
    wrong, n = 0, 100
    for trial in range(n):
        rng = np.random.default_rng(7000 + trial)
        sides = [ladder(rng, noise) for _ in "ab"]
        again = [retuned(side) for side in sides]
        for i in range(len(C)):
            (base, other), choices = (
                (curves(side[i], i, rng) for side in sides),
                [a.selection(i, 200, rng) for a in again],
            )
            found = compute_saved(
                *base, *other, baseline_choice=choices[0], contender_choice=choices[1], n_bootstrap=100
            )
            wrong += 0.0 not in found.interval
    assert wrong <= 0.06 * n * len(C), "3.8 and 3.2% of the sizes of 400 other ladders"


@pytest.mark.slow
@pytest.mark.parametrize("noise", [2e-3, 6e-3])
def test_intervals_cover_the_truth_in_19_of_20_tuned_ladders_and_equal_optimizers_are_told_apart_in_one(noise):
    covered, wrong, n = {"E": 0, "A": 0, "alpha": 0}, 0, 200
    for trial in range(n):
        rng = np.random.default_rng(1000 + trial)
        sides = {name: ladder(rng, noise) for name in ("a", "b")}
        laws = fit_joint_laws(
            {name: (np.repeat(C, 3), np.concatenate([size.seeds for size in sizes])) for name, sizes in sides.items()},
            groups={name: list(np.repeat(C, 3)) for name in sides},
            resamplers={name: retuned(sizes).losses for name, sizes in sides.items()}, n_bootstrap=60, seed=trial,
        )  # fmt: skip
        for name, truth in (("E", 1.7), ("A", 300.0), ("alpha", 0.13)):
            covered[name] += truth in laws["a"].intervals[name]
        wrong += 0.0 not in compute_gain(laws["a"], laws["b"], n_points=5).interval
    assert min(covered.values()) >= 0.93 * n, "of 400 other ladders with 200 resamples 94.5 to 97.3%"
    assert wrong <= 0.05 * n, "of 400 other ladders with 200 resamples 3.0 and 1.8%"


def test_the_noise_is_a_power_of_the_length_where_lengths_differ():
    rng = np.random.default_rng(0)
    x = np.repeat([1.0, 4.0, 16.0, 64.0], 3)
    slopes = []
    for _ in range(40):
        law, freedom = noise_law(x, 1e-4 / x * rng.chisquare(2, len(x)) / 2, [2] * len(x))
        assert freedom == 2 * len(x) - 1
        slopes.append(np.log(law[0] / law[-1]) / np.log(64))
    assert np.mean(slopes) == pytest.approx(1.0, abs=0.15)
    law, freedom = noise_law([1.0, 1.1, 1.2], [1e-4, 3e-4, 0.0], [2, 2, 0])
    assert law == pytest.approx([2e-4] * 3)
    assert freedom == 4
