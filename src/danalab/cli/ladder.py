"""Optimizers at several sizes, learning rates tuned alike, several seeds; resumable."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from danalab.cli._shared.cluster_flags import ClusterFlags, require_used
from danalab.cli._shared.options import Positional
from danalab.cli._shared.run_tables import (
    CostFlags,
    require_plan_flags,
    show_open_ends,
    show_plan,
    show_rows,
    with_costs,
)
from danalab.errors import UserError

if TYPE_CHECKING:
    from danalab.ladder.ladder import LadderPlan


@dataclass(frozen=True, kw_only=True)
class Flags(CostFlags, ClusterFlags):
    file: Positional[Path]
    """YAML with opts, sizes or heads, multipliers, seeds, extensions and fixed."""
    out: Path | None = None
    """Folder of the ladder; default ladders/NAME of the file."""
    tokens_per_param: float | None = None
    """Horizon of all runs [tokens a parameter]; default the file's, else 20."""
    tune_lr: bool = True
    """Try the file's learning-rate multipliers at every size; otherwise use the fitted law's rate."""
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
    """Run a ladder: learning-rate trials at every size, then more seeds at the best; start it again to continue."""
    import json
    import sys
    from dataclasses import replace

    from danalab.ladder.ladder import LadderPlan, run_ladder
    from danalab.ladder.runs.sweep import collect
    from danalab.report.tables.console import print_table
    from danalab.train.callbacks.console import log_to_stderr

    require_used(flags, flags.executor)
    require_plan_flags(flags, flags.dry_run)
    if flags.jobs is not None and (flags.jobs < 1 or flags.executor != "pool"):
        raise UserError(f"--jobs {flags.jobs}: at least 1, and for --executor pool (slurm has --at-once)")
    folder = flags.out or Path("ladders") / flags.file.stem
    if flags.collect:
        return show_rows(flags, folder, collect(folder))
    plan = LadderPlan.read(flags.file)
    if flags.tokens_per_param is not None:
        plan = replace(plan, fixed={**plan.fixed, "tokens_per_param": flags.tokens_per_param})
    if not flags.tune_lr:
        plan = replace(plan, multipliers=(1.0,))
    log_to_stderr()
    if flags.dry_run:
        return _show_plan(flags, folder, plan)
    cluster = flags.cluster() if flags.executor == "slurm" else None
    found = run_ladder(folder, plan, executor=flags.executor, jobs=flags.jobs, cluster=cluster)
    if flags.json:
        printed = {
            "folder": str(folder), "rows": with_costs(found.rows, flags.dollars_per_hour),
            "tuned": [each.__dict__ for each in found.tuned], "untuned": found.untuned, "queued": found.queued,
            "failures": [{"name": each.job.folder.name, "reason": each.reason} for each in found.failures],
        }  # fmt: skip
        print(json.dumps(printed))
    elif found.tuned:
        print_table(
            ["optimizer", "size", "best multiplier", "trials", "loss"],
            [
                [
                    each.opt,
                    " ".join(f"{key}={value}" for key, value in each.size.items()),
                    f"{each.multiplier:g}" + (" (edge)" if each.at_edge else ""),
                    str(each.trials),
                    f"{each.losses[f'{each.multiplier:g}']:.4f}",
                ]
                for each in found.tuned
            ],
            left=2,
        )
    show_open_ends(found.failures, found.queued)
    for words in found.untuned:
        print(f"no further seeds: every learning-rate trial of {words} failed", file=sys.stderr)
    print(f"{len(found.rows)} runs in {folder}", file=sys.stderr)
    return 1 if found.failures else 0


def _show_plan(flags: Flags, folder: Path, plan: "LadderPlan") -> int:
    """Trials and repeats, a line for each optimizer and size; trials beyond the edge are not known yet."""
    trials, repeats = plan.trials(), plan.repeats()
    cells = trials if flags.executor == "slurm" else [*trials, *repeats]
    places = [f"{opt} {_size(size)}" for size in plan.sizes for opt in plan.opts for _ in plan.multipliers]
    if flags.executor != "slurm":
        places += [f"{opt} {_size(size)}" for size in plan.sizes for opt in plan.opts for _ in plan.seeds[1:]]
    most = plan.extensions * len(plan.opts) * len(plan.sizes) if len(plan.multipliers) > 1 else 0
    more = f"and up to {most} more trials, where the best multiplier is an outermost one" if most else ""
    if flags.executor == "slurm":
        more = f"these are the trials; {len(repeats)} runs with other seeds follow. " + more
    return show_plan(flags, folder, cells, places, more.strip())


def _size(size: dict[str, object]) -> str:
    return " ".join(f"{key}={value}" for key, value in size.items())
