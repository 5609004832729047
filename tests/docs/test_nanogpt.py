"""bench/nanogpt.py: its table is that of the stored rows."""

from __future__ import annotations

from bench.nanogpt import PAGE, RESULTS, fill, table

from danalab.ladder.rows import read_ladder


def test_the_page_shows_the_stored_rows():
    page = PAGE.read_text(encoding="utf-8")
    assert page.count("<!-- nanogpt: ") == 2
    assert fill(page) == page, "run: python bench/nanogpt.py"
    lines = table(read_ladder(RESULTS))[1]
    assert len(lines) == 12
    assert len({line[3] for line in lines}) == 1, "every optimizer tried as many settings"
