"""Many runs from a grid over flags; resumable at any time."""

from dataclasses import dataclass
from pathlib import Path

from danalab.cli._shared.run_flags import SweepFlags
from danalab.train.config.flags import Answer, Positional, setting


@dataclass(frozen=True, kw_only=True)
class Flags(SweepFlags):
    file: Positional[Path | None] = setting(None, "YAML with grid, runs and fixed.")
    grid: tuple[str, ...] = setting(
        (),
        "Varied settings: opt=adamw,adana heads=2,3 lr-multiplier=0.5,1,2 seed=0,1,2 (added to the "
        "file's grid).",
    )
    fixed: tuple[str, ...] = setting(
        (), "Settings of all runs: arch=enoki data=stdlib seq-len=256 (added to the file's)."
    )
    find_lr: bool = setting(
        False,
        "Tune the learning rate: try 0.5, 1 and 2 times each run's own, and extend the range "
        "by factors of 2 while an end is best.",
    )
    out: Path = setting(Path("sweeps/sweep"), "Folder of the sweep: runs/NAME/ and ladder.jsonl.")


def run(flags: Flags) -> Answer:
    """Train every run of a grid that is not finished; failures are listed at the end and do not stop the others."""
    from danalab.cli._shared.run_tables import show_plan, show_rows
    from danalab.experiments.cells import check_optimizers, expand, parse_assignments, parse_fixed, read_grid
    from danalab.experiments.runs import (
        FIRST,
        Queued,
        at_multiplier,
        collect,
        find_rates,
        stopping_on_sigterm,
    )
    from danalab.train.callbacks.console import log_to_stderr

    if flags.collect:
        return show_rows(flags.out, collect(flags.out))
    fixed, grid, runs = read_grid(flags.file) if flags.file is not None else ({}, {}, [])
    cells = expand({**grid, **parse_assignments(flags.grid)}, {**fixed, **parse_fixed(flags.fixed)}, runs)
    log_to_stderr()
    with stopping_on_sigterm(), flags.runner(flags.out) as runner:
        if flags.dry_run:
            cells = [at_multiplier(cell, m) for cell in cells for m in FIRST] if flags.find_lr else cells
            return show_plan(flags, runner, cells, [cell.name for cell in cells])
        runner.check(cells)
        check_optimizers(cells)
        try:
            if flags.find_lr:
                find_rates(cells, runner)
            else:
                runner.train(cells, "sweep")
        except Queued:
            pass
    return show_rows(flags.out, runner.gather(), runner)


VERBS = {"sweep": (Flags, run)}
