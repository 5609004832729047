"""The speed of experts on the page on models is the measured one."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_table_of_experts_is_that_of_the_result():
    page = (ROOT / "docs" / "models.md").read_text()
    found = json.loads((ROOT / "bench" / "results" / "moe_cpu.json").read_text())
    assert len(found["cases"]) == 4
    for case in found["cases"]:
        over = {name: spread["median"] for name, spread in case["speed_over"].items()}
        loops = f"| {over['dense loop']:.1f} x | {over['stacked loop']:.2f} x | {over['module loop']:.2f} x |"
        took = f"{1e3 * case['seconds']['grouped']['median']:.0f}"
        assert f"| {case['expert_dim']:,} wide | {case['dtype']} | {took} {loops}" in page
    assert min(case["speed_over"]["dense loop"]["median"] for case in found["cases"]) > 3
