"""Tables of sweeps and ladders: plans before training, rows afterwards."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from danalab.cli._shared.run_flags import SweepFlags
from danalab.experiments.cells import Cell
from danalab.experiments.estimate import estimate, total
from danalab.experiments.formats import as_text
from danalab.experiments.rows import has_diverged, without_points
from danalab.experiments.runs import Runner, open_ends
from danalab.experiments.slurm import SlurmRunner
from danalab.train.config.flags import Answer


def show_plan(
    flags: SweepFlags, runner: Runner, cells: Sequence[Cell], names: Sequence[str], more: str = ""
) -> Answer:
    """Estimates of cells, a line per name, and `more`; writes SLURM's scripts."""
    rate, source = flags.rate(runner.folder)
    estimates = estimate(cells, runner.folder, rate)
    scripts = list(map(str, runner.write_scripts(cells))) if isinstance(runner, SlurmRunner) else []
    flops = sum(each["flops"] for each in estimates)
    hours = total([each["device_hours"] for each in estimates])
    at_once = min(flags.at_once or runner.jobs, len(estimates))
    facts = {
        "runs": estimates,
        "flops": flops,
        "device_hours": hours,
        "wall_hours": hours and hours / at_once,
        "hours_from": source,
        "scripts": scripts,
    }
    groups: dict[str, list[dict[str, Any]]] = {}
    for name, each in zip(names, estimates, strict=True):
        groups.setdefault(name, []).append(each)
    columns: dict[str, Callable[[Any], str]] = {
        "runs": lambda runs: str(len(runs)),
        "parameters": lambda runs: f"{runs[0]['params']:,}",
        "steps": lambda runs: f"{runs[0]['steps']:,}",
        "peak lr": lambda runs: _range([run["lr"] for run in runs]),
        "tokens each": lambda runs: f"{runs[0]['tokens']:,}",
        "epochs": lambda runs: _shown(runs[0]["epochs"], ".2g"),
        "FLOPs": lambda runs: f"{sum(run['flops'] for run in runs):.3g}",
        "device-hours": lambda runs: _shown(total([run["device_hours"] for run in runs]), ".3g"),
    }
    table = [[name, *(cell(runs) for cell in columns.values())] for name, runs in groups.items()]
    totals = [f"{len(estimates)} runs", f"{flops:.3g} FLOPs"]
    if hours:
        totals.append(f"{hours:.3g} device-hours, {hours / at_once:.3g} hours with {at_once} at a time")
    lines = [
        as_text(["run", *columns], table),
        f"{', '.join(totals)} ({source}); nothing was trained (--dry-run)",
        *filter(None, [more]),
        *(f"written, not submitted: {script}" for script in scripts),
    ]
    return Answer(facts, lines)


def show_rows(folder: Path, rows: Sequence[dict[str, Any]], runner: Runner | None = None) -> Answer:
    """The rows of a sweep; prints what failed or is queued of its runner."""
    ends = {"failures": [], "queued": []} if runner is None else open_ends(runner)
    rows = without_points(rows)
    losses = [row for row in rows if row["final_loss"] is not None]
    best = min(losses, key=lambda row: row["final_loss"], default=None) if len(losses) > 1 else None
    columns: dict[str, Callable[[Any], str]] = {
        "run": lambda row: row["name"],
        "status": lambda row: "diverged" if has_diverged(row) else row["status"],
        "parameters": lambda row: f"{row['params']:,}",
        "tokens": lambda row: f"{row['tokens'] or 0:,}",
        "peak lr": lambda row: _shown(row["lr"], ".3g"),
        "val loss": lambda row: _shown(row["final_loss"], ".4f") + (" (best)" if row is best else ""),
    }
    table = as_text(list(columns), [[cell(row) for cell in columns.values()] for row in rows])
    print(f"{len(rows)} rows in {folder / 'ladder.jsonl'}", file=sys.stderr)
    return Answer({"folder": str(folder), "rows": rows, **ends}, [table], 1 if ends["failures"] else 0)


def _shown(value: float | None, digits: str) -> str:
    return "-" if value is None else f"{value:{digits}}"


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
