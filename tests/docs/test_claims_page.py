"""docs/claims.md says what the stored results say."""

from __future__ import annotations

from pathlib import Path

import pytest

import build_claims as build
from danalab.ladder.fit.statistics import Interval

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_what_the_stored_results_say():
    page = build.PAGE.read_text(encoding="utf-8")
    assert build.fill(page) == page, "run: python docs/build_claims.py"
    assert len(build.claims()) >= 16
    assert "not tested here" in page
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    assert index.partition("## Start")[2].strip().startswith("- [Claims](claims.md)")


@pytest.mark.parametrize(
    ("low", "high", "claimed", "none", "verdict"),
    [
        (30, 50, 40, 0, "supported"),
        (9, 23, 40, 0, "holds in direction, not in size"),
        (-5, 45, 40, 0, "open: contains the claim and no effect"),
        (-8, 5, 40, 0, "not shown: contains no effect, not the claim"),
        (-29, -11, 10, 0, "contradicted here: the opposite"),
        (-0.4, -0.2, -0.32, 0, "supported"),
        (0.1, 0.2, -0.32, 0, "contradicted here: the opposite"),
        (0.7, 1.2, 1, 1, "not contradicted"),
        (1.1, 1.9, 1, 1, "contradicted here"),
    ],
)
def test_a_verdict_follows_from_the_interval(low, high, claimed, none, verdict):
    claim = build.Claim("", "", "", Interval(low, high, 0.95), claimed, none, "", "", "")
    assert claim.verdict == verdict
