from __future__ import annotations

import numpy as np
import pytest

from danalab.errors import UserError
from danalab.theory.tau_statistics import measure_tau, pooled_cdf, tau_limit

ACTIVITIES = [1.0, 0.5, 0.1, 0.01]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sign", "gauss", "product"])
def test_tau_settles_at_its_limit(kind):
    found = measure_tau(ACTIVITIES, kind, steps=8000, coordinates=400)
    np.testing.assert_allclose(found, [tau_limit(p, kind) for p in ACTIVITIES], rtol=0.06)


def test_the_limits_are_the_closed_form_and_its_moments():
    assert [tau_limit(p) for p in ACTIVITIES] == pytest.approx([p / (1 + p**0.5) for p in ACTIVITIES])
    assert tau_limit(1.0, "gauss") == pytest.approx(0.3848, abs=4e-4)
    assert tau_limit(0.1, "product") == pytest.approx(0.0500, abs=4e-4)


def test_a_pooled_distribution_is_the_mean_of_the_experts():
    values = np.asarray([[0.0, 1.0, 2.0, 3.0], [2.0, 3.0, 4.0, 5.0]])
    x, height = pooled_cdf(values)
    at = dict(zip(x.tolist(), height.tolist(), strict=True))
    assert at[3.0] == pytest.approx((1.0 + 0.5) / 2)
    assert at[5.0] == 1.0


@pytest.mark.parametrize(
    "call", [lambda: tau_limit(0.0), lambda: tau_limit(0.5, "cauchy"), lambda: measure_tau([0.5], steps=0)]
)
def test_bad_settings_are_refused(call):
    with pytest.raises(UserError):
        call()
