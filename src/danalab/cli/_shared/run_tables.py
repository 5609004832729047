"""Tables of sweeps and ladders: plans and estimates before training, rows afterwards."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from danalab.errors import UserError
from danalab.experiments.cells import Cell
from danalab.experiments.estimate import estimate, token_rate, total
from danalab.experiments.formats import print_table
from danalab.experiments.plan import LadderPlan
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


def show_rungs(flags: Any, plan: LadderPlan, folder: Path, *, jobs: int) -> None:
    """Print the estimate of a ladder by rungs, and its total; `jobs`: runs at a time, for the wall time."""
    rungs, price = plan.rungs(), flags.price
    cells = [[cell for runs in plan.planned(rung).values() for cell in runs] for rung in rungs]
    rate, source = flags.rate(folder)
    if flags.tokens_per_second is not None:
        rate, source = (
            token_rate(flags.tokens_per_second),
            f"{flags.tokens_per_second:,.0f} tokens/s as given",
        )
    if rate is None:
        raise UserError(f"--estimate: {source}, or --tokens-per-second")
    lines: list[dict[str, Any]] = []
    every: list[dict[str, Any]] = []
    for rung, each in zip(rungs, cells, strict=True):
        runs = estimate(each, folder, rate, price)
        every += runs
        hours = sum(run["device_hours"] or 0.0 for run in runs)
        lines.append(
            {
                "rung": str(rung),
                "runs": len(runs),
                "params": runs[0]["params"],
                "tokens": runs[0]["tokens"],
                "epochs": runs[0]["epochs"],
                "tokens_per_second": sum(run["tokens"] for run in runs) / (3600 * hours),
                "device_hours": hours,
                "wall_hours": hours / min(jobs, len(runs)),
                "cost": total([run["cost"] for run in runs]),
            }
        )
    hours, wall = (sum(line[name] for line in lines) for name in ("device_hours", "wall_hours"))
    cost = total([run["cost"] for run in every])
    if flags.print_json(
        {
            "rungs": lines,
            "runs": len(every),
            "device_hours": total([run["device_hours"] for run in every]),
            "wall_hours": wall,
            "cost": cost,
            "rate": source,
        }
    ):
        return
    columns: Columns = {
        "rung": lambda line: line["rung"],
        "runs": lambda line: str(line["runs"]),
        "parameters": lambda line: f"{line['params']:,}",
        "tokens each": lambda line: f"{line['tokens']:,}",
        "epochs": lambda line: "-" if line["epochs"] is None else f"{line['epochs']:.2g}",
        "tokens/s": lambda line: f"{line['tokens_per_second']:,.0f}",
        "device-hours": lambda line: _hours(line["device_hours"]),
        "wall hours": lambda line: _hours(line["wall_hours"]),
    }
    whole = [
        "total",
        str(len(every)),
        "",
        f"{sum(run['tokens'] for run in every):,}",
        "",
        "",
        _hours(hours),
        _hours(wall),
    ]
    if price is not None:
        columns["cost [$]"] = lambda line: _money(line["cost"])
        whole.append(_money(cost))
    print_table(list(columns), [*([cell(line) for cell in columns.values()] for line in lines), whole])
    budgets = " or ".join(str(trials) for trials in sorted({plan.trials_of(opt) for opt in plan.opts}))
    print(
        f"each optimizer tries {budgets} settings on a rung, then {len(plan.seeds) - 1} more seeds; {jobs} "
        f"run{'s' * (jobs != 1)} at a time; {source}; nothing was trained (--estimate)"
    )
