"""Many runs from a grid over flags; resumable at any time."""

from contextlib import suppress
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
    out: Path = setting(Path("sweeps/sweep"), "Folder of the sweep: runs/NAME/ and ladder.jsonl.")


def run(flags: Flags) -> Answer:
    """Train every run of a grid that is not finished; failures are listed at the end and do not stop the others."""
    from danalab.cli._shared.run_tables import show_plan, show_rows
    from danalab.experiments.cells import check_optimizers, expand, parse_assignments, parse_fixed, read_grid
    from danalab.experiments.runs import Queued, collect, stopping_on_sigterm
    from danalab.train.callbacks.console import log_to_stderr

    if flags.collect:
        return show_rows(flags.out, collect(flags.out))
    fixed, grid, runs = read_grid(flags.file) if flags.file is not None else ({}, {}, [])
    cells = expand({**grid, **parse_assignments(flags.grid)}, {**fixed, **parse_fixed(flags.fixed)}, runs)
    log_to_stderr()
    with stopping_on_sigterm(), flags.runner(flags.out) as runner:
        if flags.dry_run:
            return show_plan(flags, runner, cells, [cell.name for cell in cells])
        runner.check(cells)
        check_optimizers(cells)
        with suppress(Queued):
            runner.train(cells, "sweep")
    return show_rows(flags.out, runner.gather(), runner)


VERBS = {"sweep": (Flags, run)}
