from __future__ import annotations

import numpy as np
import pytest

from danalab.errors import UserError
from danalab.theory import PLRF, draw
from danalab.theory.equivalents import density, limit_loss, limit_tau, smallest_eigenvalue
from danalab_bench.theory_checks import limit_kappa, limit_loss_continuum

ROWS = range(6)


@pytest.mark.parametrize("row", ROWS)
def test_limits_equal_the_golden_table(golden, row):
    alpha, beta, v, d, continuum, fixed_point, tau, kappa, *rest = np.load(golden / "theory_limits_main.npz")[
        "table"
    ][row]
    model = PLRF(alpha, beta, int(v), int(d))
    assert limit_loss(alpha, beta, int(v), int(d)) == pytest.approx(fixed_point, rel=1e-9)
    assert limit_tau(model) == pytest.approx(tau, rel=1e-9)
    assert limit_loss_continuum(alpha, beta, int(v), int(d)) == pytest.approx(continuum, rel=3e-3)
    assert model.trace == pytest.approx(rest[2], rel=1e-12)
    if 2 * alpha > 1:
        assert limit_kappa(alpha, v / d) == pytest.approx(kappa, rel=2e-3)
        assert smallest_eigenvalue(model) == pytest.approx(rest[4], rel=1e-9)


def test_the_limit_of_random_draws_is_the_deterministic_one():
    model = PLRF(1.0, 0.5, 1200, 300)
    drawn = np.mean([draw(model, seed).spectrum.limit for seed in range(8)])
    assert drawn == pytest.approx(limit_loss(1.0, 0.5, 1200, 300), rel=0.1)


def test_the_spectrum_of_a_draw_is_the_power_law():
    lam = draw(PLRF(1.0, 0.3, 2000, 500), seed=0).spectrum.lam
    ranks = np.arange(5, 51)
    assert np.polyfit(np.log(ranks), np.log(lam[ranks - 1]), 1)[0] == pytest.approx(-2, abs=0.03)
    assert lam.sum() == pytest.approx(1.6444, rel=0.08)
    assert lam[-1] == pytest.approx(1.4975e-6, rel=0.05)


@pytest.mark.slow
def test_the_density_counts_all_eigenvalues_and_carries_all_of_the_loss():
    model = PLRF(1.0, 0.5, 400, 100)
    x = np.geomspace(0.5 * smallest_eigenvalue(model), 4, 800)
    eigenvalues, rho = density(model, x)
    assert np.trapezoid(eigenvalues, x) == pytest.approx(100, rel=0.01)
    total = limit_loss(1.0, 0.5, 400, 100) + 0.5 * np.trapezoid(x * rho, x)
    assert total == pytest.approx(model.initial_risk, rel=0.01)


def test_features_that_span_everything_have_no_limit_loss():
    assert limit_loss(1.0, 0.5, 50, 50) == 0


def test_a_limit_without_a_phase_is_refused():
    with pytest.raises(UserError, match="no phase"):
        limit_loss(0.2, 0.2, 100, 10)
