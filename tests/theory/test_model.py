from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from danalab.errors import UserError
from danalab.theory import PLRF, Spectrum, binned_spectrum, draw, power_law_spectrum
from danalab.theory import problem as spectra
from danalab.theory.problem import power_sum


@pytest.mark.parametrize(
    ("alpha", "beta", "word"),
    [(0.0, 1.0, "alpha"), (0.3, 0.1, "beta"), (-1.0, 3.0, "alpha"), (float("nan"), 1, "finite")],
)
def test_exponents_without_a_phase_are_refused(alpha, beta, word):
    with pytest.raises(UserError, match=word):
        PLRF(alpha, beta, 40, 10)


def test_more_parameters_than_features_are_refused():
    with pytest.raises(UserError, match="v = 10 < d = 20"):
        PLRF(1.0, 0.5, 10, 20)


def test_a_negative_noise_level_is_refused():
    with pytest.raises(UserError, match="not negative"):
        Spectrum(np.ones(3), np.ones(3), limit=-1.0)


def test_a_draw_that_does_not_fit_is_refused_before_it_is_made(monkeypatch):
    monkeypatch.setattr(spectra, "available_bytes", lambda: 2**20)
    with pytest.raises(UserError, match="GiB"):
        draw(PLRF(1.0, 0.5, 4000, 1000))


def test_the_draw_equals_the_golden_spectrum(golden):
    want = np.load(golden / "theory_moments_main.npz")
    got = draw(PLRF(1.0, 0.5, 400, 100), seed=3).spectrum
    np.testing.assert_allclose(got.lam, want["lam"], rtol=1e-9)
    np.testing.assert_allclose(got.rho, want["rho"], rtol=1e-6)
    assert got.limit == pytest.approx(float(want["R_inf"]), rel=1e-9)
    assert got.initial_risk == pytest.approx(float(want["R0"]), rel=1e-12)


def test_the_root_is_the_square_root_and_the_optimum_is_optimal():
    d = draw(PLRF(0.8, 0.4, 60, 20), seed=1)
    values = np.linalg.eigvalsh(d.root @ d.root)
    np.testing.assert_allclose(np.sort(values)[::-1], d.spectrum.lam, rtol=1e-8)
    # limit + |root (0 - theta*)|^2 / 2 is the risk at zero.
    risk = d.spectrum.limit + 0.5 * np.sum((d.root @ d.optimum) ** 2)
    assert risk == pytest.approx(d.model.initial_risk, rel=1e-10)


@settings(deadline=None, max_examples=40)
@given(exponent=st.floats(-0.5, 4.0), n=st.integers(1, 30_000))
def test_power_sums_equal_plain_summation(exponent, n):
    assert power_sum(exponent, n) == pytest.approx(
        float(np.sum(np.arange(1, n + 1.0) ** -exponent)), rel=1e-9
    )


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.3), (1.0, 0.7), (0.4, 0.8)])
def test_bins_keep_the_trace_and_the_initial_risk(alpha, beta):
    whole, bins = power_law_spectrum(alpha, beta, 5000), binned_spectrum(alpha, beta, 5000)
    assert len(bins.lam) < 200
    assert bins.multiplicity.sum() == 5000
    assert bins.trace == pytest.approx(whole.trace, rel=1e-9)
    assert bins.initial_risk == pytest.approx(whole.initial_risk, rel=1e-9)
