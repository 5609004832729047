from __future__ import annotations

import jax
import numpy as np
import pytest

from danalab.errors import UserError
from danalab.theory import Spectrum, dana_average, dana_decaying, moment_recursion, ode, sgd, standard
from danalab.theory.algorithms import Momentum, PowerLaw, forgetting
from danalab.theory.problem import power_sum

TRACE = power_sum(2, 400)


@pytest.fixture
def main(golden):
    return np.load(golden / "theory_moments_main.npz")


@pytest.fixture
def spectrum(main):
    return Spectrum(main["lam"], main["rho"], float(main["R_inf"]))


@pytest.mark.sample(4)
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("short", ["sgd", "sgdm", "const", "decay"])
def test_recursion_and_equation_equal_the_golden_curves(main, spectrum, golden_name, short, batch):
    algorithm = standard(golden_name(short), alpha=1.0, beta=0.5, d=100, trace=TRACE, batch=batch)
    t = main["t"].astype(int)
    exact = moment_recursion(spectrum, algorithm, 20_000, batch=batch, times=t)
    np.testing.assert_allclose(exact.risk, main[f"discrete_{short}_B{batch}"], rtol=1e-9)
    equation = ode(spectrum, algorithm, 20_000, batch=batch, h=1e-3)
    np.testing.assert_allclose(equation.at(t), main[f"ode_{short}_B{batch}"], rtol=1e-9)
    late = t >= 300
    assert np.abs(equation.at(t) / exact.risk - 1)[late].max() < 0.01


def test_momentum_that_is_never_applied_leaves_sgd(spectrum):
    idle = Momentum(PowerLaw(3.0, -0.2), PowerLaw(0.3), PowerLaw(0.0), forgetting(2.0))
    want = moment_recursion(spectrum, sgd(0.3), 2000).risk
    np.testing.assert_allclose(moment_recursion(spectrum, idle, 2000).risk, want, rtol=1e-12)


def test_the_averaged_momentum_is_the_summed_one_with_a_grown_weight(spectrum):
    """gamma3_EMA(t) = gamma3(t) (delta' + t) / delta', delta' = delta + 1."""
    delta, kappa, gamma2 = 5.0, 0.5, 0.3
    wide = delta + 1
    summed = moment_recursion(spectrum, dana_decaying(gamma2, 0.1, kappa, delta), 3000)

    averaged = moment_recursion(spectrum, _Grown(gamma2, 0.1, kappa, wide), 3000)
    ratio = averaged.risk / summed.risk
    assert np.abs(ratio - 1)[summed.t >= 1].max() < 5e-3
    assert np.abs(ratio - 1)[summed.t >= 100].max() < 1e-3


class _Grown:
    """EMA momentum whose weight is 0.1 (1 + t)^-kappa (delta' + t) / delta'."""

    def __init__(self, gamma2, gamma3, kappa, delta):
        self.values = (gamma2, gamma3, kappa, delta)

    def at(self, t):
        gamma2, gamma3, kappa, delta = self.values
        base = dana_average(gamma2, gamma3, kappa + 1, delta).at(t)
        return base._replace(gamma3=base.gamma3 * (delta + t) / delta)


jax.tree_util.register_pytree_node(_Grown, lambda g: (g.values, None), lambda _, values: _Grown(*values))


@pytest.mark.parametrize("settings", [{"steps": 0}, {"steps": 5, "batch": 0}, {"steps": 5, "times": [3, 9]}])
def test_impossible_horizons_are_refused(spectrum, settings):
    with pytest.raises(UserError):
        moment_recursion(spectrum, sgd(0.1), **settings)
