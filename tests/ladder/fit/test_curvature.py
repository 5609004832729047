import math

import numpy as np
import pytest

from danalab.errors import UserError
from danalab.ladder.fit.rate_laws import fit_shared_curvature, fit_tolerance

RATES = 1e-3 * 2.0 ** np.arange(-3, 4)


def parabola(best, rates, k=0.02):
    return rates, 3 + 0.1 * math.log(best) + k * np.log(rates / best) ** 2


def test_three_rates_at_each_of_several_sizes_share_a_curvature_with_an_interval():
    rng = np.random.default_rng(0)
    trials = [parabola(best, best * np.array([0.5, 1, 2.0]) * 1.2) for best in (1e-3, 5e-4, 2e-4, 1e-4)]
    found = fit_shared_curvature([(x, y + 1e-4 * rng.standard_normal(3)) for x, y in trials])
    assert found.curvature == pytest.approx(0.02, rel=0.05)
    assert 0.02 in found.interval
    assert (found.n_sizes, found.n_rates) == (4, 12)


def test_one_size_of_three_rates_has_no_curvature():
    with pytest.raises(UserError, match="3 learning rates at 2 sizes or more, there are 1"):
        fit_shared_curvature([parabola(1e-3, RATES[:3]), (RATES[:2], RATES[:2])])


def test_rates_within_a_share_of_the_best_loss_are_an_interval():
    found = fit_tolerance(*parabola(1e-3, 1e-3 * np.exp(np.linspace(-3, 3, 601))), within=0.01)
    reach = math.exp(math.sqrt(0.01 * found.best_loss / 0.02))
    assert (found.low, found.high) == pytest.approx((1e-3 / reach, 1e-3 * reach), rel=1e-3)
    assert not found.low_is_open
    assert not found.high_is_open


def test_a_side_that_was_not_left_is_open_and_a_diverged_rate_ends_it():
    found = fit_tolerance([1, 2, 4, 8], [3.0, 2.99, 2.995, math.nan])
    assert (found.low, found.low_is_open) == (1, True)
    assert (found.high, found.high_is_open) == (4, False)
    with pytest.raises(UserError, match="needs 3 of them, there are 2"):
        fit_tolerance([1, 2], [3, 4])
