"""docs/claims.md and notes/claims.md say what the stored results say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import build_claims as build
from danalab.ladder.fit.statistics import Interval

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_what_the_stored_results_say():
    pages = [page.read_text(encoding="utf-8") for page in build.PAGES]
    assert [re.findall(r"<!-- claims: (\w+) -->", page) for page in pages] == [["ten"], ["all"]]
    assert list(map(build.fill, pages)) == pages, "run: python docs/build_claims.py"
    assert len(build.TEN) == 10
    assert len(build.claims()) >= 40
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    assert index.partition("## Results")[2].strip().startswith("- [Claims](claims.md)")


def test_its_prose_is_short():
    assert len(build.PAGES[0].read_text(encoding="utf-8").split()) < 900


@pytest.mark.parametrize(
    ("low", "high", "claimed", "none", "verdict"),
    [
        (30, 50, 40, 0, "confirmed"),
        (9, 23, 40, 0, "confirmed, smaller"),
        (50, 60, 40, 0, "confirmed, larger"),
        (-5, 45, 40, 0, "undecided"),
        (-8, 5, 40, 0, "no effect found"),
        (-29, -11, 10, 0, "the opposite"),
        (-0.4, -0.2, -0.32, 0, "confirmed"),
        (-0.2, -0.1, -0.32, 0, "confirmed, smaller"),
        (-0.9, -0.5, -0.32, 0, "confirmed, larger"),
        (0.1, 0.2, -0.32, 0, "the opposite"),
        (0.7, 1.2, 1, 1, "consistent with no difference"),
        (1.1, 1.9, 1, 1, "it rises"),
        (0.1, 0.9, 1, 1, "it falls"),
        # zero is missed by less than the last digit, 0.001
        (0.0003, 0.0157, 0.01, 0, "undecided"),
        (-0.0547, -0.0009, 0.02, 0, "no effect found"),
        (0.0012, 0.0157, 0.01, 0, "confirmed"),
    ],
)
def test_a_verdict_follows_from_the_interval(low, high, claimed, none, verdict):
    measure = build.Measure(Interval(low, high, 0.95))
    assert build.Claim("", "", "", measure, claimed, "", "", none).verdict == verdict


def test_sizes_seeds_and_epochs_are_those_of_the_rows_that_both_have():
    adana, muon = (build.claims()[key].measure.where for key in ("adana", "muon-t"))
    assert adana.startswith("45.2k to 919k parameters")
    assert muon.startswith("45.2k to 542k parameters"), "Muon has no run of the largest size"
    assert adana.endswith("epochs 0.19 to 3.8")
    assert "seeds 1 to 3" in muon
