"""Shared by the tests of the studies: skip where JAX is not installed."""

from __future__ import annotations

import pytest

pytest.importorskip("jax")
pytest.importorskip("scipy")
