"""Tables of sweeps and ladders: plans and estimates before training, rows afterwards."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from danalab.experiments.cells import Cell
from danalab.experiments.estimate import estimate, total
from danalab.experiments.formats import print_table
from danalab.experiments.runs import Runner
from danalab.experiments.slurm import SlurmRunner

Columns = dict[str, Callable[[Any], str]]
"""Heading -> cell of a row."""


def show_plan(flags: Any, runner: Runner, cells: Sequence[Cell], names: Sequence[str], more: str = "") -> int:
    """Print estimates of cells, a line per name, and `more`; write SLURM's scripts. Returns the exit code."""
    rate, source = flags.rate(runner.folder)
    estimates = estimate(cells, runner.folder, rate, flags.price)
    scripts = list(map(str, runner.write_scripts(cells))) if isinstance(runner, SlurmRunner) else []
    flops = sum(each["flops"] for each in estimates)
    hours, cost = (total([each[name] for each in estimates]) for name in ("device_hours", "cost"))
    if flags.print_json(
        {
            "runs": estimates,
            "flops": flops,
            "device_hours": hours,
            "cost": cost,
            "hours_from": source,
            "scripts": scripts,
        }
    ):
        return 0
    groups: dict[str, list[dict[str, Any]]] = {}
    for name, each in zip(names, estimates, strict=True):
        groups.setdefault(name, []).append(each)
    columns: Columns = {
        "parameters": lambda runs: f"{runs[0]['params']:,}",
        "steps": lambda runs: f"{runs[0]['steps']:,}",
        "peak lr": lambda runs: _range([run["lr"] for run in runs]),
        "tokens each": lambda runs: f"{runs[0]['tokens']:,}",
        "FLOPs": lambda runs: f"{sum(run['flops'] for run in runs):.3g}",
        "device-hours": lambda runs: _hours(total([run["device_hours"] for run in runs])),
    }
    if len(groups) < len(estimates):
        columns = {"runs": lambda runs: str(len(runs)), **columns}
    if flags.price is not None:
        columns["cost [$]"] = lambda runs: _money(total([run["cost"] for run in runs]))
    lines = [[name, *(cell(runs) for cell in columns.values())] for name, runs in groups.items()]
    print_table(["run", *columns], lines)
    totals = [f"{len(estimates)} runs", f"{flops:.3g} FLOPs"]
    totals += [f"{_hours(hours)} device-hours"] if hours else []
    totals += [] if cost is None else [f"cost {_money(cost)}"]
    print(f"{', '.join(totals)} ({source}); nothing was trained (--dry-run)")
    for line in [*filter(None, [more]), *(f"written, not submitted: {script}" for script in scripts)]:
        print(line)
    return 0


def show_rows(flags: Any, folder: Path, rows: Sequence[dict[str, Any]], runner: Runner | None = None) -> int:
    """Print the rows of a sweep, and what failed or is queued of its runner. Returns the exit code."""
    ends = {"failures": [], "queued": []} if runner is None else open_ends(runner)
    printed = {"folder": str(folder), "rows": with_costs(rows, flags.dollars_per_hour)}
    if not flags.print_json({**printed, **ends}):
        print_rows(rows, flags.dollars_per_hour)
    if runner is not None:
        show_open_ends(runner)
    print(f"{len(rows)} rows in {folder / 'ladder.jsonl'}", file=sys.stderr)
    return 1 if ends["failures"] else 0


def open_ends(runner: Runner) -> dict[str, list[Any]]:
    """Failures and queued runs, for JSON."""
    failures = [{"name": name, "reason": reason} for name, reason in sorted(runner.failures.items())]
    return {"failures": failures, "queued": sorted(runner.queued)}


def show_open_ends(runner: Runner) -> None:
    """Print failures and queued runs on standard error."""
    for name, reason in sorted(runner.failures.items()):
        print(f"failed: {name}: {reason}", file=sys.stderr)
    if runner.queued:
        print(
            f"{len(runner.queued)} runs are queued or running; start the same command again when they have ended, or "
            "with --wait; --collect gathers the finished ones",
            file=sys.stderr,
        )


def print_rows(rows: Sequence[dict[str, Any]], price: float | None = None) -> None:
    """Print one line per run."""
    columns: Columns = {
        "run": lambda row: row["name"],
        "status": lambda row: row["status"],
        "parameters": lambda row: f"{row['params']:,}",
        "tokens": lambda row: f"{row['tokens'] or 0:,}",
        "val loss": lambda row: "-" if row["final_loss"] is None else f"{row['final_loss']:.4f}",
        "device-hours": lambda row: _hours(row["device_hours"]),
    }
    if price is not None:
        columns["cost [$]"] = lambda row: _money(row["cost"])
    print_table(list(columns), [[cell(row) for cell in columns.values()] for row in with_costs(rows, price)])


def with_costs(rows: Sequence[dict[str, Any]], price: float | None) -> list[dict[str, Any]]:
    """Rows for JSON: without the metrics of packed ones, and with costs where a price is given."""
    rows = [{key: value for key, value in row.items() if key != "points"} for row in rows]
    if price is None:
        return rows
    return [
        {**row, "cost": None if row["device_hours"] is None else row["device_hours"] * price} for row in rows
    ]


def _hours(hours: float | None) -> str:
    return "-" if hours is None else f"{hours:.3g}"


def _money(cost: float | None) -> str:
    return "-" if cost is None else f"{cost:,.2f}"


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
