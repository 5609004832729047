"""The table of the parallel modes on docs/training.md has the numbers of the kept result."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_cost_of_the_modes_is_the_measured_one():
    page = (ROOT / "docs" / "training.md").read_text()
    modes = json.loads((ROOT / "bench" / "results" / "parallel_cpu.json").read_text())["modes"]
    for name, row in modes.items():
        numbers = {key: value["median"] for key, value in row.items()}
        assert (
            f"| {name} | {1e3 * numbers['seconds']:.0f} | {numbers['tokens_per_second']:,.0f} "
            f"| {numbers['memory_gib']:.2f} | {numbers['time_over_reference']:.2f} |"
        ) in page
