from __future__ import annotations

import numpy as np
import pytest

from danalab.errors import UserError
from danalab.theory import PLRF, draw, moment_recursion, sgd
from danalab.theory.curve import geometric_times
from danalab.theory.race import race, zipf
from danalab.theory.races import hummingbird, moe


@pytest.fixture(scope="module")
def wing():
    return hummingbird(kappas=[0.0, 0.7, 1.0], steps=8000, optimizers=["adana", "dana-mk4"])


@pytest.mark.slow
def test_without_damping_adana_blows_up_and_clipping_folds_the_wing_back(wing):
    assert wing.risk["adana"][-1, 0] > 100 * wing.initial
    assert wing.risk["dana-mk4"][-1, 0] < 5e-3
    low = wing.risk["adana"][:, 0].min()
    assert low < 0.1 * wing.initial  # it falls first: that is the body of the hummingbird


@pytest.mark.slow
def test_clipping_does_nothing_where_the_momentum_is_damped(wing):
    late = wing.t >= 1600
    np.testing.assert_allclose(wing.risk["dana-mk4"][late, 1:], wing.risk["adana"][late, 1:], rtol=0.01)


def test_adana_is_ahead_of_adam_at_equal_learning_rate():
    found = hummingbird(kappas=[0.7], steps=1000, optimizers=["adana"])
    assert found.risk["adana"][-1, 0] < 0.5 * found.risk["adam"][-1, 0]


@pytest.fixture(scope="module")
def sparse():
    return moe(steps=3000, kappas=[0.75], seeds=2)


@pytest.mark.slow
def test_rare_gradients_ruin_adana_and_not_dana_star(sparse):
    adana, star, adam = (sparse.total(name)[-1, 0] for name in ("adana", "dana-star-mk4", "adam"))
    assert star < 0.1 * adana
    assert star < 0.5 * adam


@pytest.mark.slow
def test_tau_tells_how_often_an_expert_is_seen(sparse):
    assert 0.75 < sparse.tau_slope(0) < 0.95


@pytest.mark.slow
def test_sgd_in_the_race_has_the_expected_risk():
    """The original basis with the square root of K, one expert: the same law as the exact recursion."""
    problem = draw(PLRF(1.0, 0.5, 60, 20), seed=3)
    times = np.asarray([100])
    learning_rates = [0.2]
    risks = [
        race(problem, {"sgd": ("sgd", {"lr": learning_rates})}, times, batch=8, seed=s)["sgd"][0][0, 0, 0]
        for s in range(100)
    ]
    exact = moment_recursion(problem.spectrum, sgd(0.2), 100, batch=8, times=times).risk[0]
    assert np.mean(risks) == pytest.approx(exact, abs=4.5 * np.std(risks) / np.sqrt(len(risks)))


def test_experts_probabilities_follow_zipf():
    p = zipf(4, 1.0)
    assert sum(p) == pytest.approx(1)
    assert p[0] / p[3] == pytest.approx(4)


def test_times_are_even_in_the_logarithm_and_end_at_the_horizon():
    t = geometric_times(1000)
    assert t[0] == 0
    assert t[-1] == 1000
    assert (np.diff(t) > 0).all()
    assert t[-2] / t[-3] == pytest.approx(1.1, rel=0.02)


@pytest.mark.parametrize(
    "call",
    [
        lambda: hummingbird(kappas=[1.5]),
        lambda: hummingbird(noise=-0.1),
        lambda: hummingbird(experts=0),
        lambda: hummingbird(steps=0),
        lambda: moe(seeds=0),
        lambda: hummingbird(batch=0),
        lambda: hummingbird(lr=-1.0),
    ],
)
def test_bad_settings_are_refused(call):
    with pytest.raises(UserError):
        call()
