"""bench/width_transfer.py: best rates over widths, and what a rate that does not transfer costs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import yaml
from bench.width_transfer import PAGE, RESULTS, exponent, fill, losses, table

from danalab.errors import UserError
from danalab.ladder.plan import read_plan
from danalab.ladder.rows import read_ladder
from danalab.train.config.rules import read_rules

BENCH = Path(__file__).parents[2] / "bench"


def test_the_page_shows_the_stored_rows():
    page = PAGE.read_text(encoding="utf-8")
    assert "<!-- width: transfer -->" in page
    assert fill(page, losses(read_ladder(RESULTS))) == page


def test_a_planted_law_of_the_width_is_in_its_interval():
    rates = [1e-3 * 2**k for k in range(-6, 3)]
    by_width = {
        width: {rate: 2.0 + 0.2 * math.log(rate / (2e-3 * (32 / width) ** 0.9)) ** 2 for rate in rates}
        for width in (32, 64, 128, 256)
    }
    slope, interval = exponent(by_width)
    assert slope == pytest.approx(-0.9, abs=0.1)
    assert -0.9 in interval
    step = math.log(2) / math.log(256 / 32)  # what the grid cannot resolve: at least a third of a step over the range
    assert 2 * step / 3 < interval.high - interval.low < 5 * step


def test_best_rates_at_the_edge_are_refused():
    with pytest.raises(UserError, match="outermost"):
        exponent({width: {1e-3: 3.0, 2e-3: 2.5, 4e-3: 2.0} for width in (32, 64, 128)})


def test_transfer_takes_the_narrowest_ones_best_rate_of_those_that_all_tried():
    tried = {
        32: {1e-3: 3.4, 2e-3: 3.2, 4e-3: 3.1, 8e-3: 3.0, 1.6e-2: 3.5},
        64: {1e-3: 2.9, 2e-3: 2.8, 4e-3: 2.85},
        128: {1e-3: 2.5, 2e-3: 2.4, 4e-3: 2.75},
    }
    rows = [
        {"opt": "adamw", "lr": lr, "status": "finished", "final_loss": loss, "settings": {"d_model": width}}
        for width, by_rate in tried.items()
        for lr, loss in by_rate.items()
    ]
    rows.append({**rows[0], "lr": 1.0, "status": "failed", "final_loss": 0.0})
    cells = [cell.strip().partition(", ")[2] for cell in table(losses(rows)).splitlines()[2].split("|")[2:5]]
    assert cells == ["+0.100", "+0.050", "+0.350"]


def test_all_widths_try_the_same_rates():
    plan = read_plan(BENCH / "width_transfer.yaml")
    rules = read_rules(BENCH / plan.fixed["rules"])
    for opt in ("adamw", "adana"):
        fitted = rules.law("enoki", opt, 8)
        assert fitted is not None
        assert fitted[0](2e4) == fitted[0](2e6)
    assert {size["d_model"] // size["n_heads"] for size in plan.sizes} == {16}
    assert yaml.safe_load((BENCH / "width_transfer.yaml").read_text())["variants"]["adana-mup"]["base_d_model"] == 32
