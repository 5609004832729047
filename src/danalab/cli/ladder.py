"""Optimizers at several sizes, learning rates tuned alike, several seeds; resumable.

danalab ladder bench/ladder_cpu.yaml --dry-run
danalab ladder pack ladders/ladder_cpu --out published         # one file that report and ladder read as the folder
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from danalab.cli._shared.options import JsonFlags, Positional
from danalab.cli._shared.run_flags import SweepFlags
from danalab.errors import UserError, nearest
from danalab.train.config.fields import PathText

if TYPE_CHECKING:
    from danalab.experiments.plan import LadderPlan
    from danalab.experiments.runs import Runner


@dataclass(frozen=True, kw_only=True)
class Flags(SweepFlags):
    file: Positional[Path]
    """YAML with opts, sizes or heads, horizons, multipliers, dials, seeds and fixed; see docs/ladders.md."""
    out: Path | None = None
    """Folder of the ladder; default ladders/NAME of the file."""
    opts: tuple[PathText, ...] = ()
    """Only these optimizers of the file."""
    horizons: tuple[float, ...] = ()
    """Horizons f = tokens / (20 parameters) of all sizes, instead of the file's."""
    sizes: int | None = None
    """Only this number of sizes, from the first."""


def run(flags: Flags) -> int:
    """Run a ladder: the search for the best settings at every size, then more seeds; start it again to continue."""
    from danalab.cli._shared.run_tables import open_ends, show_open_ends, show_rows, with_costs
    from danalab.experiments.formats import print_table
    from danalab.experiments.ladder import run_ladder
    from danalab.experiments.plan import read_plan
    from danalab.experiments.runs import collect, stopping_on_sigterm
    from danalab.train.callbacks.console import log_to_stderr

    flags.require_effect(flags.dry_run)
    folder = flags.out or Path("ladders") / flags.file.stem
    if flags.collect:
        return show_rows(flags, folder, collect(folder))
    plan = _chosen(flags, read_plan(flags.file))
    log_to_stderr()
    runner = flags.runner(folder)
    if flags.dry_run:
        return _show_plan(flags, runner, plan)
    with stopping_on_sigterm():
        tuned, untuned = run_ladder(plan, runner)
    rows = runner.gather()
    printed = {
        "folder": str(folder),
        "rows": with_costs(rows, flags.dollars_per_hour),
        "tuned": [vars(each) for each in tuned],
        "untuned": untuned,
        **open_ends(runner),
    }
    if not flags.print_json(printed) and tuned:
        lines = []
        for each in tuned:
            settings = " ".join(f"{key}={value}" for key, value in each.settings.items())
            lines.append(
                [each.opt, each.rung, settings, ", ".join(each.edges), str(each.trials), f"{each.loss:.4f}"]
            )
        print_table(["optimizer", "rung", "best settings", "at an edge", "trials", "loss"], lines, left=3)
    show_open_ends(runner)
    for words in untuned:
        print(f"no further seeds: every trial of {words} failed", file=sys.stderr)
    print(f"{len(rows)} runs in {folder}", file=sys.stderr)
    return 1 if runner.failures else 0


def _chosen(flags: Flags, plan: "LadderPlan") -> "LadderPlan":
    changed: dict[str, Any] = {}
    for opt in flags.opts:
        if opt not in plan.opts:
            raise UserError(f"--opts {opt}{nearest(opt, plan.opts)}: the file has {', '.join(plan.opts)}")
    if flags.opts:
        changed["opts"] = tuple(opt for opt in plan.opts if opt in flags.opts)
    if flags.sizes is not None:
        if not 1 <= flags.sizes <= len(plan.heads) + len(plan.sizes):
            raise UserError(f"--sizes {flags.sizes}: the file has {len(plan.heads) + len(plan.sizes)}")
        changed["heads"] = plan.heads[: flags.sizes]
        changed["sizes"] = plan.sizes[: flags.sizes - len(changed["heads"])]
    if flags.horizons:
        sizes = changed.get("sizes", plan.sizes)
        changed["sizes"] = tuple(
            {key: value for key, value in size.items() if key != "horizons"} for size in sizes
        )
        changed["horizons"] = flags.horizons
    return plan.model_copy(update=changed)


def _show_plan(flags: Flags, runner: "Runner", plan: "LadderPlan") -> int:
    """Trials and repeats, a line for each optimizer on each rung; trials that depend on others are not known yet."""
    from danalab.cli._shared.run_tables import show_plan

    cells, places, repeats = [], [], 0
    for rung in plan.rungs():
        for opt, runs in plan.planned(rung).items():
            shown = {cell.name: cell for cell in runs if cell.settings["seed"] == plan.seeds[0]}.values()
            if flags.executor != "slurm":
                shown = runs
            repeats += len(plan.seeds) - 1
            cells += shown
            places += [f"{opt} {rung}"] * len(shown)
    more = (
        f"these are the trials; {repeats} runs with other seeds follow" if flags.executor == "slurm" else ""
    )
    return show_plan(flags, runner, cells, places, more)


@dataclass(frozen=True, kw_only=True)
class PackFlags(JsonFlags):
    ladders: Positional[tuple[Path, ...]]
    """Ladders, sweeps or packed ladders."""
    out: Path
    """Folder for ladder.jsonl.gz; as --out of danalab ladder it goes on without the runs that are packed."""


def pack_ladders(flags: PackFlags) -> None:
    """Pack ladders, with every row of their runs' metrics, into one file that is read wherever a ladder is."""
    from danalab.experiments.rows import pack, read_ladder

    rows = [row for path in flags.ladders for row in read_ladder(path)]
    file = pack(rows, flags.out)
    if not flags.print_json({"file": str(file), "runs": len(rows), "bytes": file.stat().st_size}):
        print(f"{len(rows)} runs in {file}, {file.stat().st_size:,} bytes; now: danalab report {flags.out}")


SUBVERBS = {"pack": (PackFlags, pack_ladders)}
