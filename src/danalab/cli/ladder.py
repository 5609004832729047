"""Optimizers at several sizes, learning rates tuned alike, several seeds; resumable.

danalab ladder bench/ladder_cpu.yaml --estimate
danalab ladder import-wandb exports/ --out ladders/published   # histories, and a table or JSON of the runs
danalab ladder import-wandb --api ENTITY/PROJECT --filter group=enoki --out ladders/published
danalab ladder pack ladders/ladder_cpu --out published         # one file that report and ladder read as the folder
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from danalab.cli._shared.options import JsonFlags, Positional
from danalab.cli._shared.run_flags import SweepFlags
from danalab.errors import UserError, nearest
from danalab.registry import Registry
from danalab.train.config.fields import PathText

if TYPE_CHECKING:
    from danalab.ladder.plan import LadderPlan


@dataclass(frozen=True, kw_only=True)
class Flags(SweepFlags):
    file: Positional[Path]
    """YAML with opts, sizes or heads, horizons, batches, multipliers, dials, seeds and fixed; see docs/ladders.md."""
    out: Path | None = None
    """Folder of the ladder; default ladders/NAME of the file."""
    tokens_per_param: float | None = None
    """Horizon of all runs [tokens a parameter]; default the file's, else 20."""
    opts: tuple[PathText, ...] = ()
    """Only these optimizers of the file."""
    horizons: tuple[float, ...] = ()
    """Horizons f = tokens / (20 parameters) of all sizes, instead of the file's."""
    batches: tuple[int, ...] = ()
    """Batches of all runs [sequences per step] at equal tokens, instead of the file's."""
    sizes: int | None = None
    """Only this number of sizes, from the first."""
    tune_lr: bool = True
    """Try the file's learning-rate multipliers at every size; otherwise use the fitted law's rate."""
    estimate: bool = False
    """Measure the speed of each optimizer at each size by a few steps, print hours and costs by rung, and stop."""
    tokens_per_second: float | None = None
    """With --estimate: speed of a device at every size, instead of a measurement."""
    preregister: bool = False
    """Predict the loss of the largest rung from all others before it runs, in preregistered.json; danalab report
    compares."""


def run(flags: Flags) -> int:
    """Run a ladder: learning-rate trials at every size, then more seeds at the best; start it again to continue.
    danalab ladder import-wandb makes one from runs of Weights & Biases."""
    from danalab.cli._shared.run_tables import show_open_ends, show_rows, show_rungs, with_costs
    from danalab.hardware import available_cores
    from danalab.ladder.plan import read_plan
    from danalab.ladder.run import run_ladder
    from danalab.report.formats import print_table
    from danalab.sweep.run import collect
    from danalab.train.callbacks.console import log_to_stderr

    flags.require_effect(flags.dry_run or flags.estimate)
    if flags.tokens_per_second is not None and (not flags.estimate or flags.gpu is not None):
        raise UserError(f"--tokens-per-second {flags.tokens_per_second:g}: is for --estimate without --gpu")
    folder = flags.out or Path("ladders") / flags.file.stem
    if flags.collect:
        return show_rows(flags, folder, collect(folder))
    plan = _chosen(flags, read_plan(flags.file))
    log_to_stderr()
    if flags.estimate:
        jobs = 1 if flags.executor == "inline" else flags.jobs or flags.at_once or available_cores()
        show_rungs(flags, plan, folder, jobs=jobs)
        return 0
    if flags.dry_run:
        return _show_plan(flags, folder, plan)
    found = run_ladder(
        folder, plan, executor=flags.executor, jobs=flags.jobs, cluster=flags.cluster(),
        procedures=["preregister"] if flags.preregister else [],
    )  # fmt: skip
    printed = {
        "folder": str(folder), "rows": with_costs(found.rows, flags.dollars_per_hour),
        "tuned": [each.__dict__ for each in found.tuned], "untuned": found.untuned, "queued": found.queued,
        "failures": [{"name": each.job.folder.name, "reason": each.reason} for each in found.failures],
    }  # fmt: skip
    if not flags.print_json(printed) and found.tuned:
        lines = []
        for each in found.tuned:
            multiplier = f"{each.multiplier:g}" + (" (edge)" if each.at_edge else "")
            dials = " ".join(f"{key}={value}" for key, value in (each.dials or {}).items())
            lines.append([each.opt, str(each.rung), multiplier, dials, str(each.trials), f"{each.loss:.4f}"])
        print_table(["optimizer", "rung", "best multiplier", "dials", "trials", "loss"], lines, left=2)
    show_open_ends(found.failures, found.queued)
    for words in found.untuned:
        print(f"no further seeds: every learning-rate trial of {words} failed", file=sys.stderr)
    print(f"{len(found.rows)} runs in {folder}", file=sys.stderr)
    return 1 if found.failures else 0


def _chosen(flags: Flags, plan: "LadderPlan") -> "LadderPlan":
    if flags.tokens_per_param is not None:
        plan = replace(plan, fixed={**plan.fixed, "tokens_per_param": flags.tokens_per_param})
    if not flags.tune_lr:
        plan = replace(plan, multipliers=(1.0,), trials=None)
    for opt in flags.opts:
        if opt not in plan.opts:
            raise UserError(f"--opts {opt}{nearest(opt, plan.opts)}: the file has {', '.join(plan.opts)}")
    if flags.opts:
        plan = replace(plan, opts=tuple(opt for opt in plan.opts if opt in flags.opts))
    if flags.sizes is not None:
        if not 1 <= flags.sizes <= len(plan.sizes):
            raise UserError(f"--sizes {flags.sizes}: the file has {len(plan.sizes)}")
        plan = replace(plan, sizes=plan.sizes[: flags.sizes])
    if flags.horizons:
        sizes = tuple({key: value for key, value in size.items() if key != "horizons"} for size in plan.sizes)
        plan = replace(plan, sizes=sizes, horizons=flags.horizons)
    if flags.batches:
        plan = replace(plan, batches=flags.batches)
    return plan


def _show_plan(flags: Flags, folder: Path, plan: "LadderPlan") -> int:
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
    most = 0
    if plan.trials is None and len(plan.multipliers) > 1:
        most = plan.extensions * len(plan.opts) * len(plan.rungs())
    more = f"and up to {most} more trials, where the best multiplier is an outermost one" if most else ""
    if flags.executor == "slurm":
        more = f"these are the trials; {repeats} runs with other seeds follow. " + more
    return show_plan(flags, folder, cells, places, more.strip())


@dataclass(frozen=True, kw_only=True)
class PackFlags(JsonFlags):
    ladders: Positional[tuple[Path, ...]]
    """Ladders, sweeps, packed ladders, or folders of run folders."""
    out: Path
    """Folder for ladder.jsonl.gz; as --out of danalab ladder it goes on without the runs that are packed."""


def pack_ladders(flags: PackFlags) -> None:
    """Pack ladders, with every row of their runs' metrics, into one file that is read wherever a ladder is."""
    from danalab.ladder.rows import ladder_file, pack, read_ladder, read_runs

    rows = [
        row for path in flags.ladders for row in (read_ladder if ladder_file(path) is not None else read_runs)(path)
    ]
    file = pack(rows, flags.out)
    if not flags.print_json({"file": str(file), "runs": len(rows), "bytes": file.stat().st_size}):
        print(f"{len(rows)} runs in {file}, {file.stat().st_size:,} bytes; now: danalab report {flags.out}")


SUBVERBS: Registry[tuple[type, Callable[[Any], int | None]]] = Registry("ladder command")
SUBVERBS.add("pack", (PackFlags, pack_ladders))
