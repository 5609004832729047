"""Write the results of docs/gpu.md: python docs/build_gpu.py [FOLDER]; FOLDER: of scripts/gpu_day.sh."""

from __future__ import annotations

import random
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from danalab.errors import UserError
from danalab.files import read_json
from danalab.ladder.horizon.law import HorizonLaw, HorizonPoint, fit_horizon_law
from danalab_bench.gpu_sections import line

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "gpu.md"
STORED = ROOT / "bench" / "results" / "gpu_day"
BASELINE = "adamw"
RESAMPLES = 200
_BLOCK = re.compile(r"<!-- gpu: (?P<name>\w+) -->\n.*?<!-- end -->", re.DOTALL)
Cell = tuple[str, str, float, float]
"""(optimizer, size, f, factor on the rate)."""


def speeds(result: Mapping[str, Any]) -> list[str]:
    """The lines of the benchmark's sections, and of the tests."""
    lines = [f"Tests: {each}." for each in result.get("tests", [])]
    for name, section in result["sections"].items():
        rows = [line(name, row).strip() for row in section["rows"]]
        lines += ["", f"`{name}` ({section['ended']}, {section['seconds']:.0f} s):", "", "```text", *rows, "```"]
    return lines


def cells(result: Mapping[str, Any]) -> dict[Cell, dict[int, float]]:
    """Excess loss of each seed."""
    found: dict[Cell, dict[int, float]] = defaultdict(dict)
    for row in result["rows"]:
        if row["loss"] is not None:
            found[row["opt"], row["size"], row["horizon"], row["rate"]][row["seed"]] = row["excess"]
    return found


def best(of: Mapping[Cell, dict[int, float]]) -> dict[tuple[str, str, float], dict[int, float]]:
    """Each optimizer's seeds at the better of its rates, on each rung."""
    chosen: dict[tuple[str, str, float], dict[int, float]] = {}
    for (opt, size, f, _), seeds in of.items():
        rival = chosen.get((opt, size, f))
        if rival is None or fmean(seeds.values()) < fmean(rival.values()):
            chosen[opt, size, f] = seeds
    return chosen


def losses(result: Mapping[str, Any]) -> list[str]:
    """A row for each optimizer, size and horizon, at the better rate, with the paired difference to the baseline."""
    tuned = best(cells(result))
    lines = ["| parameters | f | optimizer | excess loss | seeds | behind AdamW, paired |", "| --- |" + " ---: |" * 5]
    for (opt, size, f), seeds in sorted(tuned.items(), key=lambda item: (_number(item[0][1]), item[0][2], item[0][0])):
        other = tuned.get((BASELINE, size, f), {})
        pairs = [seeds[seed] - other[seed] for seed in seeds.keys() & other.keys()] if opt != BASELINE else []
        error = f" ± {stdev(pairs) / len(pairs) ** 0.5:.4f}" if len(pairs) > 1 else ""
        paired = f"{fmean(pairs):+.4f}{error}" if pairs else "-"
        lines.append(f"| {size} | {f:g} | {opt} | {fmean(seeds.values()):.4f} | {len(seeds)} | {paired} |")
    ways = [f"{size}: {each['way']}, processes {each['lanes']}, {each['tokens_per_second']:,.0f} tokens/s"
            for size, each in result.get("trials", {}).items()]  # fmt: skip
    left = result.get("left_out", [])
    return [*lines, "", f"Fastest way: {'; '.join(ways)}.", *([f"Left out: {'; '.join(left)}."] if left else [])]


def exponents(result: Mapping[str, Any]) -> list[str]:
    """The law's exponent of each optimizer, with an interval over resampled seeds."""
    tuned, draw = best(cells(result)), random.Random(0)
    entropy = result["rows"][0]["loss"] - result["rows"][0]["excess"]

    def fitted(start: HorizonLaw | None = None) -> HorizonLaw:
        points = []
        for (opt, size, f), seeds in tuned.items():
            values = [entropy + each for each in seeds.values()]
            kept = tuple(draw.choices(values, k=len(values)) if start else values)
            points.append(HorizonPoint(opt, round(_number(size) * 1e6), f, kept))
        return fit_horizon_law(points, BASELINE, start)

    try:
        law = fitted()
        drawn = [fitted(law) for _ in range(RESAMPLES)]
    except UserError as error:
        return ["", f"Exponents: {error}."]
    lines = ["", "| optimizer | exponent p | 95% over resampled seeds |", "| --- | ---: | --- |"]
    for opt in [opt for opt in law.slopes if opt != BASELINE]:
        spread = sorted(each.exponent(opt) for each in drawn)
        low, high = spread[int(0.025 * RESAMPLES)], spread[int(0.975 * RESAMPLES)]
        lines.append(f"| {opt} | {law.exponent(opt):.3f} | {low:.3f} to {high:.3f} |")
    return lines


def _number(size: str) -> float:
    return float(size.removesuffix("M"))


TABLES: dict[str, Callable[[Mapping[str, Any]], list[str]]] = {
    "check": speeds,
    "ladder": losses,
    "horizon": lambda result: losses(result) + exponents(result),
    "long": speeds,
}


def refresh(page: str, folder: Path = STORED) -> str:
    """The page with the results of a folder; a part without a file was not run."""

    def block(match: re.Match[str]) -> str:
        file = folder / f"{match['name']}.json"
        lines = ["Not run yet."]
        if file.exists():
            result = read_json(file)
            machine = result["machine"] or {}
            place = f"{machine.get('gpu') or machine.get('cpu')}, torch {machine.get('torch')}"
            dry = "; a dry run, whose numbers mean nothing" if result["small"] else ""
            where = f"{place}, {result['seconds']:.0f} s{dry}."
            rows = result.get("rows") or result.get("sections")
            lines = [where, "", *(TABLES[match["name"]](result) if rows else ["No result."])]
        return "\n".join([f"<!-- gpu: {match['name']} -->", "", *lines, "", "<!-- end -->"])

    return _BLOCK.sub(block, page)


if __name__ == "__main__":
    PAGE.write_text(refresh(PAGE.read_text(encoding="utf-8"), *map(Path, sys.argv[1:])), encoding="utf-8")
