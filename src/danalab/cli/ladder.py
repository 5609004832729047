"""Optimizers at several sizes, learning rates tuned alike, several seeds; resumable. And the report on their results.

danalab ladder bench/ladder_cpu.yaml --dry-run --gpu h100
danalab ladder pack ladders/ladder_cpu --out published         # one file that report and ladder read as the folder
danalab report ladders/ladder_cpu                              # compute saved, laws, curves, cost: report.md
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from danalab.cli._shared.run_flags import SweepFlags
from danalab.tables import key_of
from danalab.train.config.flags import Answer, Count, JsonFlags, Natural, PathText, Positional, setting


@dataclass(frozen=True, kw_only=True)
class Flags(SweepFlags):
    file: Positional[Path] = setting(
        help="YAML with opts, sizes or heads, horizons, multipliers, dials, seeds and fixed; see docs/ladders.md."
    )
    out: Path | None = setting(None, "Folder of the ladder; default ladders/NAME of the file.")
    opts: tuple[PathText, ...] = setting((), "Only these optimizers of the file.")
    horizons: tuple[float, ...] = setting(
        (), "Horizons f = tokens / (20 parameters) of all sizes, instead of the file's."
    )
    sizes: Count | None = setting(None, "Only this number of sizes, from the first.")


def run(flags: Flags) -> Answer:
    """Run a ladder: the search for the best settings at every size, then more seeds; start it again to continue."""
    from danalab.cli._shared.run_tables import show_plan, show_rows
    from danalab.experiments.formats import as_text
    from danalab.experiments.ladder import read_plan, run_ladder
    from danalab.experiments.rows import without_points
    from danalab.experiments.runs import collect, open_ends, stopping_on_sigterm
    from danalab.train.callbacks.console import log_to_stderr

    folder = flags.out or Path("ladders") / flags.file.stem
    if flags.collect:
        return show_rows(folder, collect(folder))
    plan = read_plan(flags.file)
    plan = plan.model_copy(update=_chosen(flags, plan))
    log_to_stderr()
    runner = flags.runner(folder)
    if flags.dry_run:
        planned = [
            (f"{opt} {rung}", cell)
            for rung in plan.rungs()
            for opt, cells in plan.planned(rung).items()
            for cell in cells
        ]
        more = ""
        if flags.executor == "slurm":  # the trials, each once: what follows depends on them
            trials = {
                cell.name: (name, cell) for name, cell in planned if cell.settings["seed"] == plan.seeds[0]
            }
            planned, more = list(trials.values()), "these are the trials; runs with other seeds follow"
        return show_plan(flags, runner, [cell for _, cell in planned], [name for name, _ in planned], more)
    with stopping_on_sigterm():
        tuned, untuned = run_ladder(plan, runner)
    rows = runner.gather()
    lines = []
    for each in tuned:
        settings = " ".join(f"{key}={value}" for key, value in each.settings.items())
        lines.append(
            [each.opt, each.rung, settings, ", ".join(each.edges), str(each.trials), f"{each.loss:.4f}"]
        )
    headings = ["optimizer", "rung", "best settings", "at an edge", "trials", "loss"]
    facts = {
        "folder": str(folder),
        "rows": without_points(rows),
        "tuned": [vars(each) for each in tuned],
        "untuned": untuned,
        **open_ends(runner),
    }
    for words in untuned:
        print(f"no further seeds: every trial of {words} failed", file=sys.stderr)
    print(f"{len(rows)} runs in {folder}", file=sys.stderr)
    return Answer(facts, [as_text(headings, lines, left=3)] if lines else [], 1 if runner.failures else 0)


def _chosen(flags: Flags, plan: Any) -> dict[str, Any]:
    """The part of a plan that the flags ask for, as changed fields of it."""
    changed: dict[str, Any] = {}
    if flags.opts:
        known = dict.fromkeys(plan.opts)
        changed["opts"] = tuple(key_of(known, opt, "optimizer of the file") for opt in flags.opts)
    if flags.sizes is not None:
        changed["heads"] = plan.heads[: flags.sizes]
        changed["sizes"] = plan.sizes[: flags.sizes - len(changed["heads"])]
    if flags.horizons:
        sizes = changed.get("sizes", plan.sizes)
        changed["sizes"] = tuple({key: size[key] for key in size if key != "horizons"} for size in sizes)
        changed["horizons"] = flags.horizons
    return changed


@dataclass(frozen=True, kw_only=True)
class PackFlags(JsonFlags):
    ladders: Positional[tuple[Path, ...]] = setting(help="Ladders, sweeps or packed ladders.")
    out: Path = setting(
        help="Folder for ladder.jsonl.gz. Pass it as --out of danalab ladder to continue without packed runs."
    )


def pack_ladders(flags: PackFlags) -> Answer:
    """Pack ladders, with every row of their runs' metrics, into one file that is read wherever a ladder is."""
    from danalab.experiments.rows import pack, read_ladder

    rows = [row for path in flags.ladders for row in read_ladder(path)]
    file = pack(rows, flags.out)
    size = file.stat().st_size
    line = f"{len(rows)} runs in {file}, {size:,} bytes; now: danalab report {flags.out}"
    return Answer({"file": str(file), "runs": len(rows), "bytes": size}, [line])


@dataclass(frozen=True, kw_only=True)
class ReportFlags(JsonFlags):
    ladder: Positional[Path] = setting(
        help="Folder of a ladder or a sweep, packed or not, or its ladder.jsonl."
    )
    out: Path | None = setting(None, "Folder of the report; default report/ in the ladder's folder.")
    tables_only: bool = setting(False, "Print the tables and write nothing.")
    baseline: str | None = setting(
        None, "Optimizer that the others are compared with; default adamw, or the first one that finished."
    )
    law: Literal["saturated", "broken", "chinchilla"] | None = setting(
        None,
        "Loss law: saturated, E + A C^-alpha; broken, with a second term; chinchilla, E + A "
        "N^-alpha + B D^-beta. Default saturated, or chinchilla where several sizes have several "
        "horizons.",
    )
    joint: bool = setting(True, "One E for all optimizers; otherwise each law has its own.")
    convention: Literal["exact", "model"] = setting(
        "exact", "Count FLOPs of the model only, or also of the optimizer (exact)."
    )
    bootstrap: Natural = setting(200, "Bootstrap resamples for the intervals of the laws.")
    seed: int = setting(0, "Bootstrap seed.")
    rules: Path | None = setting(
        None,
        "File to write with the fitted learning-rate laws, which danalab plan and train read with --rules.",
    )


def report(flags: ReportFlags) -> Answer:
    """Fit the laws of a ladder, compute the compute saved, and write a report with every figure and table."""
    from danalab.experiments.analysis import analyse, fitted_rules
    from danalab.experiments.formats import as_text
    from danalab.experiments.report import answer, remarks, tables, write_report
    from danalab.experiments.rows import read_ladder

    folder = flags.ladder if flags.ladder.is_dir() else flags.ladder.parent
    names = ("baseline", "law", "convention", "joint", "seed")
    settings = {name: getattr(flags, name) for name in names}
    found = analyse(read_ladder(flags.ladder), n_bootstrap=flags.bootstrap, **settings)
    if flags.rules is not None:
        fitted_rules(found).write(flags.rules)
    if not flags.tables_only:
        page = write_report(found, flags.out or folder / "report")
        return Answer({"report": str(page), **found.as_dict()}, [*answer(found), f"report: {page}"])
    lines = list(answer(found))
    for title, (headings, rows) in tables(found).items():
        lines += [f"\n{title}", as_text(headings, rows, 1)] if rows else []
    return Answer(found.as_dict(), [*lines, *remarks(found), *(f"note: {note}" for note in found.notes)])


VERBS = {"ladder": (Flags, run), "ladder pack": (PackFlags, pack_ladders), "report": (ReportFlags, report)}
