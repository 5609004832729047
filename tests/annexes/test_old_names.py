"""Public names whose code moved to an annex are importable from where they stood, for one release."""

from __future__ import annotations

from importlib import import_module

import pytest

MOVED = {
    "danalab.data.check": ("Finding", "Validation", "validate"),
    "danalab.data.sources": ("HubSource",),
    "danalab.models.huggingface": ("from_huggingface", "require_class", "to_huggingface"),
    "danalab.theory": (
        "compute_optimum", "density", "frontier", "hummingbird", "limit_loss", "load_spectrum", "measure_tau", "moe",
        "phase", "predict", "smallest_eigenvalue", "tau_limit", "time_exponents",
    ),
}  # fmt: skip


@pytest.mark.parametrize("module", MOVED)
def test_names_that_moved_to_annexes_are_importable_from_where_they_stood(module):
    if module == "danalab.theory":
        pytest.importorskip("jax")
    for name in MOVED[module]:
        assert getattr(import_module(module), name).__module__.startswith(("danalab_annexes.", "danalab.data."))
