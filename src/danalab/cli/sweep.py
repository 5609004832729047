"""Many runs from a grid over flags; resumable at any time."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from danalab.cli._shared.options import Positional
from danalab.cli._shared.run_flags import ClusterFlags, CostFlags, require_plan_flags, require_used
from danalab.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Flags(CostFlags, ClusterFlags):
    file: Positional[Path | None] = None
    """YAML with grid, runs and fixed."""
    grid: tuple[str, ...] = ()
    """Varied settings: opt=adamw,adana heads=2,3 lr-multiplier=0.5,1,2 seed=0,1,2 (added to the file's grid)."""
    fixed: tuple[str, ...] = ()
    """Settings of all runs: arch=enoki data=stdlib seq-len=256 (added to the file's)."""
    out: Path = Path("sweeps/sweep")
    """Folder of the sweep: runs/NAME/ and ladder.jsonl."""
    executor: Literal["pool", "inline", "slurm"] = "pool"
    """pool: processes side by side; inline: runs in turn in this process; slurm: array jobs, one run per task."""
    jobs: int | None = None
    """Runs at a time of the pool; default one a core."""
    dry_run: bool = False
    """Print the runs with their tokens, FLOPs and hours, and stop; slurm: also write the scripts, submit nothing."""
    collect: bool = False
    """Gather the rows of the folder and stop."""
    json: bool = False
    """Print one JSON object on standard output."""


def run(flags: Flags) -> int:
    """Train every run of a grid that is not finished; failures are listed at the end and do not stop the others."""
    from danalab.cli._shared.run_tables import show_plan, show_rows
    from danalab.ladder.runs.grid import expand, parse_assignments, parse_fixed, read_grid
    from danalab.ladder.runs.sweep import collect, run_sweep
    from danalab.train.callbacks.console import log_to_stderr

    require_used(flags, flags.executor)
    require_plan_flags(flags, flags.dry_run)
    if flags.collect:
        return show_rows(flags, flags.out, collect(flags.out))
    fixed, grid, runs = read_grid(flags.file) if flags.file is not None else ({}, {}, [])
    cells = expand({**grid, **parse_assignments(flags.grid)}, {**fixed, **parse_fixed(flags.fixed)}, runs)
    if flags.jobs is not None and (flags.jobs < 1 or flags.executor != "pool"):
        raise UserError(f"--jobs {flags.jobs}: at least 1, and for --executor pool (slurm has --at-once)")
    log_to_stderr()
    if flags.dry_run:
        return show_plan(flags, flags.out, cells, [cell.name for cell in cells])
    cluster = flags.cluster() if flags.executor == "slurm" else None
    found = run_sweep(flags.out, cells, executor=flags.executor, jobs=flags.jobs, cluster=cluster)
    return show_rows(flags, flags.out, found.rows, found)
