from __future__ import annotations

import numpy as np
import pytest

from danalab.errors import UserError
from danalab.theory.exponents import frontier


@pytest.mark.slow
def test_frontiers_equal_the_golden_ones_and_are_ordered(golden):
    want = np.load(golden / "theory_compute_optimal.npz")
    slopes = {}
    for short, name in (("sgd", "sgd"), ("const", "dana-constant"), ("decay", "dana-decaying")):
        got = frontier(1.0, 0.3, name, want["d"].tolist(), flops=want["flops"])
        inside = got.interior()
        np.testing.assert_allclose(got.risk[inside], want[f"frontier_{short}"][inside], rtol=0.01)
        np.testing.assert_array_equal(got.best, want[f"dopt_{short}"])
        slopes[short] = got.slope()
    assert slopes["sgd"] == pytest.approx(0.530, abs=0.01)
    assert slopes["const"] == pytest.approx(0.607, abs=0.01)
    assert slopes["decay"] == pytest.approx(0.659, abs=0.01)


def test_a_frontier_needs_several_sizes():
    with pytest.raises(UserError, match="three ascending sizes"):
        frontier(1.0, 0.3, "sgd", [100, 50, 200])
