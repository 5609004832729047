from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from danalab.errors import UserError
from danalab.theory import (
    binned_spectrum,
    dana_decaying,
    ode,
    power_law_spectrum,
    sgd,
    standard,
)
from danalab.theory.problem import power_sum


@pytest.mark.sample(1)
@pytest.mark.parametrize("short", ["sgd", "const", "decay", "ademamix"])
def test_a_million_steps_equal_the_golden_curves(golden, golden_name, short):
    want = np.load(golden / "theory_ode_main.npz")
    spectrum = power_law_spectrum(1.0, 0.5, 1000, limit=6.920303382676309e-06)
    algorithm = standard(golden_name(short), alpha=1.0, beta=0.5, d=1000, trace=power_sum(2, 4000))
    curve = ode(spectrum, algorithm, 1e6, h=1e-3)
    np.testing.assert_allclose(curve.at(want["t"]), want[f"risk_{short}"], rtol=1e-9)
    np.testing.assert_allclose(curve.momentum_at(want["t"])[1:], want[f"ysq_{short}"][1:], rtol=1e-9)
    coarse = ode(spectrum, algorithm, 1e6, h=1e-2)
    assert np.abs(coarse.at(want["t"]) / want[f"risk_{short}"] - 1)[want["t"] >= 100].max() < 6e-3


@pytest.mark.slow
def test_the_number_of_integration_steps_grows_with_the_logarithm_of_time():
    spectrum = power_law_spectrum(1.0, 0.3, 20)
    lengths = [len(ode(spectrum, sgd(0.3), horizon).t) for horizon in (1e2, 1e4, 1e8)]
    assert np.diff(lengths)[1] == pytest.approx(2 * np.diff(lengths)[0], rel=0.02)


@pytest.fixture(scope="module")
def sweep(request):
    """DANA-decaying for 15 values of kappa at once, as in the golden sweep."""
    golden = np.load(request.getfixturevalue("golden") / "theory_kappa_sweep_main.npz")
    gamma2 = 0.5 / power_sum(2, 8000)
    algorithms = [dana_decaying(gamma2, 0.5 * gamma2, k, 5.3) for k in golden["kappa"]]
    return golden, ode(power_law_spectrum(1.0, 0.3, 2000), algorithms, float(golden["t"][-1]))


@pytest.mark.slow
def test_a_sweep_of_kappa_equals_the_golden_one_where_it_is_stable(sweep):
    golden, curve = sweep
    got = curve.at(golden["t"])
    stable = (golden["risk"] > 0) & (golden["risk"] < 0.6)
    np.testing.assert_allclose(got[stable], golden["risk"][stable], rtol=1e-6)
    assert (got[~stable] > 0.6).all()


@pytest.mark.slow
def test_the_risk_is_u_shaped_in_kappa_with_a_cliff_on_the_left(sweep):
    golden, curve = sweep
    kappa, risk = golden["kappa"], curve.at([1e5])[:, 0]
    at = {round(float(k), 2): r for k, r in zip(kappa, risk, strict=True)}
    assert kappa[risk.argmin()] == pytest.approx(0.4, abs=0.05)
    assert at[0.3] / at[0.4] > 1e3
    assert at[1.0] / at[0.5] == pytest.approx(12.6, rel=0.1)


@pytest.mark.slow
def test_too_much_momentum_diverges_and_is_reported_so():
    gamma2 = 0.5 / power_sum(2, 10**7)
    algorithms = [dana_decaying(gamma2, 0.5 * gamma2, k, 5.3) for k in (0.2, 0.4, 0.5)]
    risk = ode(binned_spectrum(1.0, 0.3, 10**7), algorithms, 1e7).at([1e5, 1e7])
    assert risk[0, 0] > 1e10
    assert (risk[1:] < 1e-3).all()


@pytest.mark.parametrize(
    ("point", "name", "window", "slope", "tolerance"),
    [
        ((1.0, 0.3), "sgd", (1e5, 1e6), 0.8, 0.01),
        ((1.0, 0.3), "dana-decaying", (1e6, 1e7), 1.2, 0.02),
        ((1.5, 0.3), "dana-decaying", (1e6, 1e7), 1.4444, 0.02),
        ((1.0, 1.3), "dana-decaying", (1e5, 1e6), 2.25, 0.08),
    ],
)
def test_local_slopes_are_those_of_the_phase(point, name, window, slope, tolerance):
    spectrum = binned_spectrum(*point, 10**9, per_decade=30)
    algorithm = standard(name, alpha=point[0], beta=point[1], d=10**9, trace=power_sum(2 * point[0], 10**6))
    assert ode(spectrum, algorithm, 1e8, h=5e-3).slope(*window) == pytest.approx(slope, abs=tolerance)


@pytest.mark.parametrize("run", ["Ia_sgd", "Ia_decay", "III_decay", "Ia15_decay"])
def test_a_billion_modes_equal_the_golden_curves(golden, golden_name, run):
    want = np.load(golden / "theory_exponents_large_d.npz")
    phase, short = run.split("_")
    alpha, beta = {"Ia": (1.0, 0.3), "III": (1.0, 1.3), "Ia15": (1.5, 0.3)}[phase]
    algorithm = standard(
        golden_name(short), alpha=alpha, beta=beta, d=10**9, trace=power_sum(2 * alpha, 10**6)
    )
    curve = ode(binned_spectrum(alpha, beta, 10**9, per_decade=30), algorithm, 1e8, h=5e-3)
    # The bins' edges are ours; the curves may differ by what binning costs.
    np.testing.assert_allclose(curve.at(want["t"]), want[f"risk_{run}"], rtol=0.03)


def test_the_callers_precision_is_left_alone():
    ode(power_law_spectrum(1.0, 0.3, 20), sgd(0.3), 10.0)
    assert jnp.ones(1).dtype == jnp.float32


@pytest.mark.parametrize("settings", [{"horizon": 0.0}, {"horizon": 10.0, "h": 0.0}])
def test_bad_settings_are_refused(settings):
    with pytest.raises(UserError):
        ode(power_law_spectrum(1.0, 0.3, 20), sgd(0.3), **settings)
