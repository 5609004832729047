"""The benchmark of the delta rule compares what computes the same, and says what it found."""

from __future__ import annotations

import pytest
import torch
from bench import delta_rule

from danalab.errors import UserError

pytest.importorskip("transformers")


def test_a_short_run_has_every_contender_at_every_length():
    lines = []
    found = delta_rule.measure([8, 40], 2, 8, 1, "cpu", lines.append)
    assert [row["tokens"] for row in found["rows"]] == [8, 40]
    assert found["rows"][0]["seconds"].keys() == {"danalab", "transformers", "attention"}
    assert found["rows"][0]["times_faster_than"].keys() == {"transformers", "attention"}
    assert len(lines) == 2


def test_rules_that_differ_are_not_compared(monkeypatch):
    monkeypatch.setattr(delta_rule, "_transformers_rule", lambda: lambda q, k, v, g, beta: (q * k * v, None))
    with pytest.raises(UserError, match="differ"):
        delta_rule.measure([8], 2, 8, 1, "cpu", print)


def test_no_tokens_are_refused():
    with pytest.raises(UserError, match="--lengths 0"):
        delta_rule.measure([0], 2, 8, 1, "cpu", print)
    assert torch.is_grad_enabled()
