"""Makes notes/coverage.md from the report of a run of the tests: `make coverage`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
GOAL = 90.0
"""Percent of the lines, of the package and of each file."""
REASONS = {
    "optim/step/backends/triton_kernel.py": "runs in Triton's compiler, not in Python",
}
"""Start of a path in `src/danalab` -> why its lines are not run by the fast tests."""


def page(report: Mapping[str, Any]) -> str:
    """The page. Args: report: of `coverage json`."""
    paths = {name: (ROOT / name).relative_to(ROOT / "src").as_posix() for name in report["files"]}
    files = {path.removeprefix("danalab/"): report["files"][name] for name, path in paths.items()}
    rooms: dict[str, list[tuple[int, int]]] = {}
    for name, entry in files.items():
        numbers = entry["summary"]["num_statements"], entry["summary"]["missing_lines"]
        rooms.setdefault(name.partition("/")[0] if "/" in name else "danalab", []).append(numbers)
    share = report["totals"]["percent_covered"]
    lines = [
        "# Coverage",
        "",
        "For those who change the code and ask which lines no test runs.",
        "",
        f"Lines of `src` that `make test` runs, in processes that tests start, too: **{share:.1f}%**. Made by "
        "`make coverage`.",
        "",
        "| room | lines | not run | run |",
        "| --- | ---: | ---: | ---: |",
    ]
    for room, numbers in sorted(rooms.items()):
        total, missing = (sum(column) for column in zip(*numbers, strict=True))
        lines.append(f"| `{room}` | {total:,} | {missing:,} | {_percent(total, missing):.1f}% |")
    lines += [
        "",
        f"## Files below {GOAL:.0f}%",
        "",
        "| file | run | lines that are not | why |",
        "| --- | ---: | --- | --- |",
    ]
    for name, entry in sorted(files.items()):
        summary = entry["summary"]
        percent = _percent(summary["num_statements"], summary["missing_lines"])
        if percent < GOAL:
            why = next((reason for start, reason in REASONS.items() if name.startswith(start)), "")
            lines.append(f"| `{name}` | {percent:.0f}% | {ranges(entry['missing_lines'])} | {why} |")
    return "\n".join(lines) + "\n"


def ranges(numbers: Iterable[int]) -> str:
    """Numbers of lines, those that follow each other as one range."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def _percent(total: int, missing: int) -> float:
    return 100.0 if total == 0 else 100 * (total - missing) / total


if __name__ == "__main__":
    (ROOT / "notes" / "coverage.md").write_text(page(json.loads(Path(sys.argv[1]).read_text())), encoding="utf-8")
