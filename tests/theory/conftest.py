"""Shared by the tests of the theory: skip where JAX is not installed; the small model of the golden arrays."""

from __future__ import annotations

import pytest

pytest.importorskip("jax")
pytest.importorskip("scipy")

NAMES = {
    "sgd": "sgd",
    "sgdm": "sgd-m",
    "const": "dana-constant",
    "decay": "dana-decaying",
    "ademamix": "ademamix",
}


@pytest.fixture
def golden_name():
    """Name of an algorithm, from its abbreviation in the golden arrays."""
    return NAMES.__getitem__
