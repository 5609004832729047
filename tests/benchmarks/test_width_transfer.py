"""bench/width_transfer.py: best rates over widths, and what a rate that does not transfer costs."""

from __future__ import annotations

import runpy
from pathlib import Path

import yaml

from danalab.ladder.plan import read_plan
from danalab.train.config.rules import read_rules

BENCH = Path(__file__).parents[2] / "bench"


def test_the_table_has_the_best_rate_and_the_cost_of_the_narrowest_ones():
    table = runpy.run_path(str(BENCH / "width_transfer.py"))["table"]
    losses = {32: {0.004: 3.1, 0.008: 3.0}, 256: {0.002: 2.5, 0.004: 2.6, 0.008: 2.75}, 512: {0.002: 2.4}}
    rows = [
        {"opt": "adamw", "lr": lr, "status": "finished", "final_loss": loss, "settings": {"d_model": width}}
        for width, by_rate in losses.items()
        for lr, loss in by_rate.items()
    ]
    rows.append({**rows[0], "lr": 1.0, "status": "failed", "final_loss": 0.0})
    assert table(rows).splitlines() == [
        "| best rate, + cost of the narrowest's | 32 | 256 | 512 |",
        "| --- | --- | --- | --- |",
        "| adamw | 0.008, +0.000 | 0.002, +0.250 | 0.002, not tried |",
    ]


def test_all_widths_try_the_same_rates():
    plan = read_plan(BENCH / "width_transfer.yaml")
    rules = read_rules(BENCH / plan.fixed["rules"])
    for opt in ("adamw", "adana"):
        fitted = rules.law("enoki", opt, 8)
        assert fitted is not None
        assert fitted[0](2e4) == fitted[0](2e6)
    assert {size["d_model"] // size["n_heads"] for size in plan.sizes} == {16}
    assert yaml.safe_load((BENCH / "width_transfer.yaml").read_text())["variants"]["adana-mup"]["base_d_model"] == 32
