"""bench/images.py: its table is that of the stored rows."""

from __future__ import annotations

from bench.images import PAGE, SEEDS, TRIALS, TWELVE, fill, read_rows, table


def test_the_page_shows_the_stored_rows():
    page, rows = PAGE.read_text(encoding="utf-8"), read_rows()
    assert "<!-- images: table -->" in page
    assert fill(page, rows) == page
    assert {row["optimizer"] for row in rows} == set(TWELVE)
    assert {(len(row["trials"]), len(row["dials"]), len(row["losses"])) for row in rows} == {(TRIALS, 2, SEEDS)}


def test_leads_are_paired_by_seed_and_the_baselines_have_none_over_themselves():
    header, lines = table(read_rows())
    over_adamw, over_muon = (header.index(f"lead over {name} [nats/image]") for name in ("adamw", "muon"))
    found = {line[0]: line for line in lines}
    assert found["adamw"][over_adamw] == found["muon"][over_muon] == "-"
    assert found["dana-muon"][over_muon].startswith("+0.028 (+0.015 to")
