"""The curvature of the loss at one size."""

import math

import numpy as np
import pytest

from danalab.errors import UserError
from danalab_annexes.ladder.curvature import fit_curvature

RATES = 1e-3 * 2.0 ** np.arange(-3, 4)


def test_a_planted_parabola_is_recovered():
    found = fit_curvature(RATES, 3.1 + 0.019 * np.log(RATES / 1.3e-3) ** 2)
    assert found.curvature == pytest.approx(0.019)
    assert found.best_lr == pytest.approx(1.3e-3)
    assert found.best_loss == pytest.approx(3.1)
    assert found.loss_increase(1.2) == pytest.approx(0.019 * math.log(1.2) ** 2)


def test_a_flat_far_side_falls_back_to_the_rates_around_the_best():
    loss = 3 + 0.05 * np.log(RATES / RATES[3]) ** 2
    rates = np.append(RATES, RATES[-1] * 4.0 ** np.arange(1, 12))
    found = fit_curvature(rates, np.append(loss, np.full(11, loss[-1] - 0.1)))
    assert found.best_lr == pytest.approx(RATES[3], rel=0.05)


def test_four_rates_are_refused_with_the_number_that_is_needed():
    with pytest.raises(UserError, match="needs 5 learning rates, there are 4"):
        fit_curvature(RATES[:4], RATES[:4])


def test_losses_without_a_minimum_are_refused():
    with pytest.raises(UserError, match="no minimum"):
        fit_curvature(RATES, -(np.log(RATES) ** 2))
