"""bench/horizon_rates.py and bench/dana_muon.py: their tables are those of the stored rows."""

from __future__ import annotations

import pytest
from bench import dana_muon, horizon_rates

from danalab.files import read_json
from danalab.ladder.rows import read_ladder


def test_the_horizon_page_shows_the_stored_rows_of_the_closer_look():
    page = horizon_rates.PAGE.read_text(encoding="utf-8")
    assert page.count("<!-- rates: ") == 4
    assert horizon_rates.fill(page) == page, "run: python bench/horizon_rates.py"


def test_predictions_follow_from_the_rows_that_they_name_none_of_them_at_the_unseen_horizon():
    told = read_json(horizon_rates.PREDICTIONS)
    rows = {row["name"]: row for row in read_ladder(horizon_rates.CLOSE)}
    again = horizon_rates.predict([rows[name] for name in told["made_from"]], read_ladder(horizon_rates.BEFORE))
    for opt in horizon_rates.OPTS:
        assert told["predictions"][opt]["lr"] == pytest.approx(again["predictions"][opt]["lr"])
        assert told["predictions"][opt]["loss_with_the_law"] == pytest.approx(
            again["predictions"][opt]["loss_with_the_law"], rel=1e-4
        )


def test_the_runs_at_the_unseen_horizon_have_the_rates_that_were_predicted():
    told = read_json(horizon_rates.PREDICTIONS)["predictions"]
    for row in read_ladder(horizon_rates.LAST):
        opt, _, arm = row["opt"].rpartition("-")
        assert row["lr"] == pytest.approx(told[opt]["lr"][arm], rel=2e-3)


def test_the_optimizers_page_shows_the_stored_rows_of_dana_muons_forms():
    page = dana_muon.PAGE.read_text(encoding="utf-8")
    rows = read_ladder(dana_muon.RESULTS)
    assert "<!-- dana-muon: table -->" in page
    assert dana_muon.fill(page, rows) == page, "run: python bench/dana_muon.py"
    assert len(dana_muon.table(rows)[1]) == 9
