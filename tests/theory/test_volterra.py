from __future__ import annotations

import numpy as np
import pytest

from danalab.theory import Spectrum, kernel_norm, noise_floor, ode, sgd, standard
from danalab.theory.problem import power_sum
from danalab_bench.theory_checks import sgd_volterra

GAMMA2 = 0.5 / power_sum(2, 400)


@pytest.fixture
def spectrum(golden):
    main = np.load(golden / "theory_moments_main.npz")
    return Spectrum(main["lam"], main["rho"], float(main["R_inf"]))


@pytest.mark.slow
def test_sgds_equation_solves_its_volterra_equation(spectrum):
    times = [1, 10, 100, 500]
    want = ode(spectrum, sgd(GAMMA2), 500, h=1e-3).at(times)
    np.testing.assert_allclose(sgd_volterra(spectrum, GAMMA2, times), want, rtol=2e-4)


@pytest.mark.slow
def test_noise_floors_are_where_the_curves_end(spectrum):
    for name, floor in (("sgd", 1.57965), ("dana-constant", 2.6456)):
        algorithm = standard(name, alpha=1.0, beta=0.5, d=100, trace=power_sum(2, 400))
        assert noise_floor(spectrum, algorithm) / spectrum.limit == pytest.approx(floor, rel=1e-4)
        end = ode(spectrum, algorithm, 1e9).risk[-1]
        assert end / spectrum.limit == pytest.approx(floor, rel=1e-3)


def test_a_kernel_of_norm_one_has_no_floor(spectrum):
    for step in (1.2, 3.0):  # too much noise; a step too long for the first mode alone
        algorithm = sgd(step / spectrum.trace)
        assert kernel_norm(spectrum, algorithm, 0.0) > 1
        assert noise_floor(spectrum, algorithm) == float("inf")
