"""The table of the judge's calibration is that of the stored result, and the result keeps its promises."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
STORED = json.loads((ROOT / "bench" / "results" / "judge_calibration.json").read_text())


def test_the_page_has_the_stored_numbers():
    page = (ROOT / "docs" / "judge.md").read_text()
    wrong = STORED["equal"]["better"] + STORED["equal"]["worse"]
    assert f"| | {wrong:.1%} | | |" in page
    for case in ("one_noise", "two_noises"):
        row = STORED[case]
        assert (
            f"| {row['worse']:.0%} | {row['better']:.0%} | {row['median_pairs']:.0f} | {STORED['t_test_pairs'][case]} |"
            in page
        )


def test_equal_sides_are_rarely_decided_and_one_noise_floor_mostly_is():
    assert STORED["equal"]["better"] + STORED["equal"]["worse"] <= 0.05
    assert STORED["one_noise"]["worse"] >= 0.8
