"""The speed of experts in the notes is the measured one."""

from __future__ import annotations

from pathlib import Path

from danalab_bench.pages import benchmark

ROOT = Path(__file__).parents[2]


def test_the_table_of_experts_is_that_of_the_result():
    page = (ROOT / "notes" / "speed.md").read_text()
    found = benchmark("moe_cpu")
    assert len(found["cases"]) == 4
    for case in found["cases"]:
        over = {name: spread["median"] for name, spread in case["speed_over"].items()}
        loops = f"| {over['dense loop']:.1f} x | {over['stacked loop']:.2f} x | {over['module loop']:.2f} x |"
        took = f"{1e3 * case['seconds']['grouped']['median']:.0f}"
        assert f"| {case['expert_dim']:,} wide | {case['dtype']} | {took} {loops}" in page
    assert min(case["speed_over"]["dense loop"]["median"] for case in found["cases"]) > 3
