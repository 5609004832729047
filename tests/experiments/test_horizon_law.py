"""The law of the horizon: planted coefficients come back, and the multiplier is the ratio of tokens at equal loss."""

import math

import numpy as np
import pytest

from danalab.errors import UserError
from danalab.experiments.horizon import fit_horizon_law
from experiments.planted_horizons import ALPHA, BETA, GAIN, SIZES, A, E, loss_at


def points(exponent, gain=GAIN, sizes=SIZES, kept=lambda opt, horizon: True):
    """(places, log losses, seeds)."""
    places = [
        (opt, params, horizon)
        for params, horizons in sizes.items()
        for horizon in horizons
        for opt in ("adamw", "adana")
        if kept(opt, horizon)
    ]
    losses = [loss_at(params, f if opt == "adamw" else gain * f**exponent) for opt, params, f in places]
    return places, np.log(losses), [1] * len(places)


@pytest.mark.parametrize("exponent", [0.9, 1.0, 1.15, 1.3])
def test_planted_coefficients_come_back(exponent):
    law = fit_horizon_law(*points(exponent), "adamw")
    assert law.exponent("adana") == pytest.approx(exponent, rel=1e-4)
    assert law.slopes["adamw"] == pytest.approx(BETA, rel=1e-3)
    assert math.exp(law.log_multiplier("adana", 1)) == pytest.approx(GAIN, rel=1e-3)
    for params in SIZES:
        assert law.floors[params] == pytest.approx(E + A * params**-ALPHA, rel=1e-4)
        for horizon in SIZES[params]:
            assert law("adamw", params, horizon) == pytest.approx(loss_at(params, horizon), rel=1e-5)


def test_a_measured_multiplier_is_the_ratio_of_tokens_at_equal_loss():
    law = fit_horizon_law(*points(1.15), "adamw")
    for params in SIZES:
        for more in (0.7, 1.0, 2.5):
            found = law.log_multiplier_of(params, loss_at(params, 4), loss_at(params, 4 * more))
            assert math.exp(found) == pytest.approx(more, rel=1e-3)
    assert law.log_multiplier_of(7_000, 3.1, 1.0) == math.inf, "no horizon reaches a loss below F"
    assert math.isnan(law.log_multiplier_of(7_000, 1.0, 3.1))


def test_a_law_is_a_starting_point_for_other_horizons():
    law = fit_horizon_law(*points(1.15), "adamw")
    fewer = {params: horizons[:3] for params, horizons in SIZES.items()}
    again = fit_horizon_law(*points(1.15, sizes=fewer), "adamw", start=law)
    assert again.exponent("adana") == pytest.approx(law.exponent("adana"), rel=1e-4)


def test_too_few_horizons_are_named():
    two = {7_000: (1, 4), 14_000: (1, 4)}
    with pytest.raises(UserError, match="needs 3 horizons of adamw at one size, not 2"):
        fit_horizon_law(*points(1.15, sizes=two), "adamw")
    lone = points(1.15, kept=lambda opt, horizon: opt == "adamw" or horizon == 1)
    with pytest.raises(UserError, match="adana: an exponent needs two horizons"):
        fit_horizon_law(*lone, "adamw")
