"""The benchmark of experts compares what computes the same, and says what it found."""

from __future__ import annotations

import pytest
import torch

from danalab_bench import moe

LOOPS = ("dense loop", "stacked loop", "module loop")


@pytest.fixture(autouse=True)
def untuned(monkeypatch):
    monkeypatch.setattr(moe, "tune_malloc", lambda: False)  # it is for the whole process


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_short_run_has_every_contender(dtype):
    lines: list[str] = []
    found = moe.measure([moe.ExpertCase(24, 16, 40, 4, 2, dtype)], 1, lines.append)
    [row] = found["cases"]
    assert row["dtype"] == dtype
    assert row["seconds"].keys() == {"grouped", *LOOPS}
    assert row["speed_over"].keys() == set(LOOPS)
    assert len(lines) == 1
    assert all(name in lines[0] for name in LOOPS)


def test_loops_that_compute_something_else_are_not_compared(monkeypatch):
    monkeypatch.setattr(moe.DenseLoop, "mixed", lambda self, flat, weights, chosen: torch.zeros_like(flat) * flat)
    with pytest.raises(AssertionError, match="dense loop"):
        moe.measure([moe.ExpertCase(24, 16, 40, 4, 2)], 1, print)
