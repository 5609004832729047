"""Many runs from a grid over flags; resumable at any time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tyro.conf import Positional

from danalab.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Flags:
    file: Positional[Path | None] = None
    """YAML with grid, runs and fixed."""
    grid: tuple[str, ...] = ()
    """What varies: opt=adamw,adana heads=2,3 lr-multiplier=0.5,1,2 seed=0,1,2 (added to the file's grid)."""
    fixed: tuple[str, ...] = ()
    """What all runs have in common: arch=enoki data=stdlib seq-len=256 (added to the file's)."""
    out: Path = Path("sweeps/sweep")
    """Folder of the sweep: runs/NAME/ and ladder.jsonl."""
    executor: Literal["pool", "inline"] = "pool"
    """pool: processes side by side; inline: one run after the other in this process."""
    jobs: int | None = None
    """Runs at a time; default one a core."""
    dry_run: bool = False
    """Print the runs with their tokens and FLOPs, and stop."""
    json: bool = False
    """Print one JSON object on standard output."""


def run(flags: Flags) -> int:
    """Make every run of a grid that isn't finished yet; failures are listed at the end and don't stop the rest."""
    import json
    import sys

    from danalab.ladder.grid import expand, parse_assignments, read_grid
    from danalab.ladder.sweep import run_sweep
    from danalab.train.console import log_to_stderr

    fixed, grid, runs = read_grid(flags.file) if flags.file is not None else ({}, {}, [])
    said = {key: values[0] for key, values in parse_assignments(flags.fixed, "--fixed").items() if values}
    cells = expand({**grid, **parse_assignments(flags.grid)}, {**fixed, **said}, runs)
    if flags.jobs is not None and flags.jobs < 1:
        raise UserError(f"--jobs {flags.jobs}: must be at least 1")
    if flags.dry_run:
        return _show_plan(cells, flags)
    log_to_stderr()
    found = run_sweep(flags.out, cells, executor=flags.executor, jobs=flags.jobs)
    if flags.json:
        failures = [{"name": failure.job.folder.name, "reason": failure.reason} for failure in found.failures]
        print(json.dumps({"folder": str(found.folder), "rows": found.rows, "failures": failures}))
    else:
        _print_rows(found.rows)
        for failure in found.failures:
            print(f"failed: {failure.job.folder.name}: {failure.reason}", file=sys.stderr)
        print(f"{len(found.rows)} rows in {found.folder / 'ladder.jsonl'}", file=sys.stderr)
    return 1 if found.failures else 0


def _show_plan(cells: Any, flags: Flags) -> int:
    import json

    from danalab.data import open_dataset, resolve_dataset
    from danalab.report.console import print_table
    from danalab.train.resolve import resolve

    rows = []
    for cell in cells:
        config = cell.config(flags.out / "runs" / cell.name)
        planned = resolve(config, open_dataset(resolve_dataset(config.data, config.tokenizer))).plan
        rows.append({"name": cell.name, "params": planned.exact_params, "steps": planned.steps, "lr": planned.lr,
                     "tokens": planned.tokens, "flops": planned.flops})  # fmt: skip
    if flags.json:
        print(json.dumps({"runs": rows, "flops": sum(row["flops"] for row in rows)}))
        return 0
    print_table(
        ["run", "parameters", "steps", "peak lr", "tokens", "FLOPs"],
        [
            [row["name"], f"{row['params']:,}", f"{row['steps']:,}", f"{row['lr']:.3g}", f"{row['tokens']:,}",
             f"{row['flops']:.3g}"]
            for row in rows
        ],
    )  # fmt: skip
    print(f"{len(rows)} runs, {sum(row['flops'] for row in rows):.3g} FLOPs; nothing was trained (--dry-run)")
    return 0


def _print_rows(rows: list[dict[str, Any]]) -> None:
    from danalab.report.console import print_table

    print_table(
        ["run", "status", "parameters", "tokens", "val loss"],
        [
            [row["name"], row["status"], f"{row['params']:,}", f"{row['tokens'] or 0:,}",
             "-" if row["final_loss"] is None else f"{row['final_loss']:.4f}"]
            for row in rows
        ],
    )  # fmt: skip
