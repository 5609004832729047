"""Optimizers of which each steps in its own way: where every optimizer takes long, the fast suite tries these."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

ONE_OF_EACH = [
    "adamw",
    "adana",
    "auto-dana",
    "snoo-dana",
    "muon",
    "sophia",
    "soap",
    "prodigy",
    "lamb",
    "sf-adamw",
]
"""Of each way to step: torch's, ours, measured, around another, matrices, Hessian, owned, sums, norms, switched."""


def others_slow(names: Iterable[str]) -> list[object]:
    """Parameters of a test of every optimizer, of which the fast suite runs one of each kind."""
    return [name if name in ONE_OF_EACH else pytest.param(name, marks=pytest.mark.slow) for name in names]
