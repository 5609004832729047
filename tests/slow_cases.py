"""Cases of a test that `make test` leaves out: `make test-all` and a GPU run them."""

from __future__ import annotations

from typing import Any

import pytest


def slow(*values: Any) -> list[Any]:
    """Values of a parameter, each marked slow."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]
