"""Tables of sweeps and ladders: plans before training, rows afterwards. Also the flags of hours and costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from danalab.errors import UserError

if TYPE_CHECKING:
    from danalab.ladder.runs.estimate import Estimate, Rate
    from danalab.ladder.runs.grid import Cell
    from danalab.ladder.runs.jobs import Failure
    from danalab.ladder.runs.sweep import SweepResult


@dataclass(frozen=True, kw_only=True)
class CostFlags:
    """From FLOPs to hours and money."""

    gpu: str | None = None
    """With --dry-run and --estimate: hours on this accelerator (h100, a100, ...); default of --dry-run by the runs that
    are finished, if any, of --estimate by a short measurement."""
    mfu: float = 0.4
    """With --gpu: share of its peak that training reaches."""
    dollars_per_hour: float | None = None
    """Price of a device, for a column of costs [$ an hour]; default in plans a rough one of --gpu."""

    @property
    def price(self) -> float | None:
        """Of a device [$ an hour]: as given, else a rough one of --gpu."""
        from danalab.scaling.hardware import named

        if self.dollars_per_hour is not None or self.gpu is None:
            return self.dollars_per_hour
        return named(self.gpu).dollars_per_hour

    def rate(self, folder: Path) -> tuple[Rate | None, str]:
        """(FLOP/s of a device, source of the number)."""
        from danalab.ladder.runs.estimate import accelerator_rate, measured_rate
        from danalab.ladder.runs.rows import FILE, read_ladder

        if self.gpu is not None:
            return accelerator_rate(self.gpu, self.mfu), f"{self.gpu.upper()} at {self.mfu:.0%} of its peak"
        rows = read_ladder(folder) if (folder / FILE).is_file() and (folder / FILE).stat().st_size else []
        rate = measured_rate(rows)
        if rate is None:
            return None, "no run is finished: use --gpu NAME for hours"
        return rate, f"as the finished runs in {folder}"


def show_plan(flags: Any, folder: Path, cells: Sequence[Cell], names: Sequence[str], more: str = "") -> int:
    """Print the estimates of cells; for SLURM also write the scripts without submitting. Returns the exit code.

    Args:
        flags: of a sweep or a ladder.
        names: of the cells in the table; cells of one name share a line.
        more: a line at the end.
    """
    import json

    from danalab.ladder.runs.estimate import estimate
    from danalab.ladder.runs.sweep import write_scripts

    rate, source = flags.rate(folder)
    estimates = estimate(cells, folder, rate, flags.price)
    scripts = [] if flags.executor != "slurm" else list(map(str, write_scripts(folder, cells, flags.cluster())))
    if flags.json:
        print(json.dumps({**estimates_as_json(estimates, source), "scripts": scripts}))
        return 0
    print_estimates(estimates, source, names, price=flags.price is not None)
    if more:
        print(more)
    for script in scripts:
        print(f"written, not submitted: {script}")
    return 0


def show_rows(flags: Any, folder: Path, rows: Sequence[dict[str, Any]], found: SweepResult | None = None) -> int:
    """Print the rows of a sweep, its failures and queued runs. Returns the exit code."""
    import json
    import sys

    failures = [] if found is None else found.failures
    queued = [] if found is None else found.queued
    if flags.json:
        reasons = [{"name": failure.job.folder.name, "reason": failure.reason} for failure in failures]
        printed = {
            "folder": str(folder),
            "rows": with_costs(rows, flags.dollars_per_hour),
            "failures": reasons,
            "queued": queued,
        }
        print(json.dumps(printed))
    else:
        print_rows(rows, flags.dollars_per_hour)
    show_open_ends(failures, queued)
    print(f"{len(rows)} rows in {folder / 'ladder.jsonl'}", file=sys.stderr)
    return 1 if failures else 0


def show_open_ends(failures: Sequence[Failure], queued: Sequence[str]) -> None:
    """Print failures and queued runs on standard error."""
    import sys

    for failure in failures:
        print(f"failed: {failure.job.folder.name}: {failure.reason}", file=sys.stderr)
    if queued:
        print(
            f"{len(queued)} runs are queued or running; start the same command again when they have ended, or with "
            "--wait; --collect gathers the finished ones",
            file=sys.stderr,
        )


def print_estimates(estimates: Sequence[Estimate], source: str, names: Sequence[str], *, price: bool) -> None:
    """A line for each group of runs with the same name: steps and tokens of one, FLOPs, hours and costs of all."""
    from danalab.ladder.runs.estimate import total
    from danalab.report.tables.console import print_table

    groups: dict[str, list[Estimate]] = {}
    for name, each in zip(names, estimates, strict=True):
        groups.setdefault(name, []).append(each)
    lines = [
        [
            name,
            *([] if len(groups) == len(estimates) else [str(len(runs))]),
            f"{runs[0].params:,}",
            f"{runs[0].steps:,}",
            _range([run.lr for run in runs]),
            f"{runs[0].tokens:,}",
            f"{sum(run.flops for run in runs):.3g}",
            _hours(total([run.device_hours for run in runs])),
            *([_money(total([run.cost for run in runs]))] if price else []),
        ]
        for name, runs in groups.items()
    ]
    count = [] if len(groups) == len(estimates) else ["runs"]
    headings = ["run", *count, "parameters", "steps", "peak lr", "tokens each", "FLOPs", "device-hours"]
    print_table([*headings, *(["cost [$]"] if price else [])], lines)
    print(f"{summary(estimates)} ({source}); nothing was trained (--dry-run)")


def summary(estimates: Sequence[Estimate]) -> str:
    """Totals of all runs, as text."""
    from danalab.ladder.runs.estimate import total

    words = f"{len(estimates)} runs, {sum(each.flops for each in estimates):.3g} FLOPs"
    hours, cost = total([each.device_hours for each in estimates]), total([each.cost for each in estimates])
    words += "" if hours is None else f", {_hours(hours)} device-hours"
    return words + ("" if cost is None else f", cost {_money(cost)}")


def estimates_as_json(estimates: Sequence[Estimate], source: str) -> dict[str, Any]:
    """The estimates as JSON."""
    from danalab.ladder.runs.estimate import total

    return {
        "runs": [asdict(each) for each in estimates],
        "flops": sum(each.flops for each in estimates),
        "device_hours": total([each.device_hours for each in estimates]),
        "cost": total([each.cost for each in estimates]),
        "hours_from": source,
    }


def print_rows(rows: Sequence[dict[str, Any]], price: float | None = None) -> None:
    """Print one line per run."""
    from danalab.report.tables.console import print_table

    priced = [] if price is None else ["cost [$]"]
    print_table(
        ["run", "status", "parameters", "tokens", "val loss", "device-hours", *priced],
        [
            [
                row["name"],
                row["status"],
                f"{row['params']:,}",
                f"{row['tokens'] or 0:,}",
                "-" if row["final_loss"] is None else f"{row['final_loss']:.4f}",
                _hours(row["device_hours"]),
                *([] if price is None else [_money(_cost(row, price))]),
            ]
            for row in rows
        ],
    )


def with_costs(rows: Sequence[dict[str, Any]], price: float | None) -> list[dict[str, Any]]:
    """Rows with their costs, where a price is given."""
    return [row if price is None else {**row, "cost": _cost(row, price)} for row in rows]


def require_plan_flags(flags: CostFlags, dry_run: bool) -> None:
    """Refuse flags without effect."""
    if flags.gpu is not None and not dry_run:
        raise UserError(f"--gpu {flags.gpu}: is for plans (--dry-run); finished runs have their own hours")
    if flags.mfu != CostFlags.mfu and flags.gpu is None:
        raise UserError(f"--mfu {flags.mfu:g}: is for --gpu NAME")
    if flags.dollars_per_hour is not None and not flags.dollars_per_hour > 0:
        raise UserError(f"--dollars-per-hour {flags.dollars_per_hour:g}: must be positive [$ an hour]")


def _cost(row: dict[str, Any], price: float) -> float | None:
    return None if row["device_hours"] is None else row["device_hours"] * price


def _hours(hours: float | None) -> str:
    return "-" if hours is None else f"{hours:.3g}"


def _money(cost: float | None) -> str:
    return "-" if cost is None else f"{cost:,.2f}"


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
