import numpy as np
import pytest

from danalab.errors import UserError
from danalab.experiments import fit_lr_law
from danalab.experiments.statistics import interval

A, B, D = 12.54, 23661.0, -0.514
SIZES = np.geomspace(1e5, 1e9, 7)
FACTORS = np.array([0.25, 0.5, 1.0, 2.0, 4.0])


def trials(sizes=SIZES, noise=0.0, seed=0):
    rng = np.random.default_rng(seed)
    best = A * (B + sizes) ** D
    params, lr = np.repeat(sizes, len(FACTORS)), (best[:, None] * FACTORS).ravel()
    loss = 3 + 0.02 * np.log(np.tile(FACTORS, len(sizes))) ** 2 + noise * rng.standard_normal(len(params))
    return params, lr, loss


def test_a_planted_law_is_recovered():
    law = fit_lr_law(*trials(), n_bootstrap=0)
    assert (law.a, law.b, law.d) == pytest.approx((A, B, D), rel=0.02)
    assert law(1e10) == pytest.approx(A * (B + 1e10) ** D, rel=0.02)
    assert law.samples == ()


def test_noise_in_the_losses_leaves_the_rate_within_the_interval_of_the_samples():
    law = fit_lr_law(*trials(noise=1e-3), n_bootstrap=100)
    logs = [np.log(a) + d * np.log(b + 3e9) for a, b, d in law.samples]
    around = interval(np.log(law(3e9)), np.multiply(logs, (7 / 6) ** 0.5), 7 - 3)
    assert np.log(A * (B + 3e9) ** D) in around


def test_a_diverged_trial_and_a_repeated_rate_change_nothing():
    params, lr, loss = trials()
    clean = fit_lr_law(params, lr, loss, n_bootstrap=0)
    more = fit_lr_law(
        np.append(params, [SIZES[0], SIZES[1]]),
        np.append(lr, [lr[0] * 8, lr[7] * 1.01]),
        np.append(loss, [np.nan, loss[7] + 0.5]),
        n_bootstrap=0,
    )
    assert (more.a, more.b, more.d) == (clean.a, clean.b, clean.d)


def test_two_sizes_are_refused_with_the_number_that_is_needed():
    with pytest.raises(UserError, match="trials at 3 sizes are needed, there are 2"):
        fit_lr_law(*trials(SIZES[:2]))


def test_the_same_trials_give_the_same_law():
    assert fit_lr_law(*trials(), n_bootstrap=5).samples == fit_lr_law(*trials(), n_bootstrap=5).samples


def test_a_rate_that_falls_faster_than_any_power_leaves_b_among_the_sizes():
    sizes = np.geomspace(1e4, 2e5, 5)
    params, lr = np.repeat(sizes, 3), (0.05 * np.exp(-sizes / 1e5)[:, None] * [0.5, 1, 2]).ravel()
    law = fit_lr_law(params, lr, np.tile([3.1, 3.0, 3.1], 5), n_bootstrap=0)
    assert law.b <= 1.01 * sizes.max()
    assert law.d > -5
