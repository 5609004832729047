"""The exponents come from a minimisation; the closed forms here are derived by hand for each phase."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from danalab.errors import UserError
from danalab.theory.exponents import FAMILIES, compute_optimum, phase, time_exponents

GOLDEN_RATIO_POINT = (3 + math.sqrt(5)) / 4


def sgd(a, b):
    return {
        "Ia": (2 * a + 2 * b - 1) / (2 * a + 1),
        "II": (2 * a + 2 * b - 1) / (2 * (a + b)),
        "III": (4 * a - 1) / (4 * a),
        "Ib": a + b - 0.5,
        "IVa": a,
        "IVb": (1 - 2 * a) * (2 * a + 2 * b - 1) / (2 * (2 * b - a - 2 * a * b)),
        "Ic": a * (2 * a + 2 * b - 1) / (3 * a + 2 * b - 1 - 2 * a * b),
    }[phase(a, b)]


def constant(a, b):
    if a <= 0.5:
        return sgd(a, b)
    if phase(a, b) == "Ia":
        return (2 * a + 2 * b - 1) / (a + 1.5)
    if a > 0.75:
        return 4 * a / (2 * a + 3)
    return (2 * a + 2 * b - 1) / (a + 3 * b) if phase(a, b) == "II" else (4 * a - 1) / (4 * a)


def decaying(a, b):
    if a <= 0.5:
        return sgd(a, b)
    if phase(a, b) == "Ia":
        return (2 * a + 2 * b - 1) * (4 * a - 1) / (4 * a * a + 4 * a - 1)
    if a > GOLDEN_RATIO_POINT:
        return 2 * a * (4 * a - 1) / (4 * a * a + 4 * a - 1)
    if phase(a, b) == "II":
        return (2 * a + 2 * b - 1) * (4 * a - 1) / (2 * (b * (4 * a - 1) + 2 * a * a))
    return (4 * a - 1) ** 2 / (2 * a * (6 * a - 1))


CLOSED = {"sgd": sgd, "dana-constant": constant, "dana-decaying": decaying}
POINTS = [
    *[
        (1.0, 0.3),
        (0.7, 0.3),
        (1.0, 0.7),
        (1.5, 0.8),
        (0.65, 0.6),
        (1.7, 0.7),
        (1.0, 1.3),
        (0.65, 0.9),
        (1.4, 1.6),
    ],
    *[(0.4, 0.3), (0.4, 0.8), (0.35, 1.2), (0.27, 0.8), (0.2, 0.8), (0.1, 0.9)],
]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("a", "b"), POINTS)
def test_compute_exponents_equal_the_closed_forms(a, b, family):
    assert compute_optimum(a, b, family).loss == pytest.approx(CLOSED[family](a, b), rel=1e-9)


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(a=st.floats(0.05, 2.0), b=st.floats(0.0, 2.0))
def test_exponents_are_continuous_and_momentum_never_hurts(a, b):
    if a + b < 0.52:
        return
    for family in FAMILIES:
        here, beside = (compute_optimum(a + e, b + e, family).loss for e in (0.0, 1e-7))
        assert beside == pytest.approx(here, abs=1e-4)
    plain, const, decay = (compute_optimum(a, b, family).loss for family in FAMILIES)
    assert const >= plain - 1e-9
    assert decay >= const - 1e-9


@pytest.mark.parametrize(
    ("a", "b", "name"),
    [
        (1, 0.3, "Ia"),
        (0.4, 0.3, "Ib"),
        (0.2, 0.8, "Ic"),
        (1, 0.7, "II"),
        (1, 1.3, "III"),
        (0.4, 0.8, "IVa"),
        (0.27, 0.8, "IVb"),
    ],
)
def test_phases_have_their_names(a, b, name):
    assert phase(a, b) == name


def test_time_exponents_are_those_of_the_clock():
    assert time_exponents(1, 0.3, "sgd")["Fpp"] == pytest.approx(0.8)
    assert time_exponents(1, 0.3, "dana-constant")["Fpp"] == pytest.approx(1.6)
    assert time_exponents(1, 0.3, "dana-decaying")["Fpp"] == pytest.approx(1.2)
    assert time_exponents(1, 1.3, "dana-decaying")["Kpp"] == pytest.approx(2.25)
    assert time_exponents(0.4, 0.8, "dana-decaying") == time_exponents(0.4, 0.8, "sgd")


@pytest.mark.parametrize("call", [lambda: phase(0.2, 0.2), lambda: compute_optimum(1, 1, "adam")])  # pyright: ignore
def test_what_is_not_defined_is_refused(call):
    with pytest.raises(UserError):
        call()
