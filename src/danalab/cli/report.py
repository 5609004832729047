"""A ladder's results: compute saved, laws of learning rate and loss, curves, cost; report.md, or tables only."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from danalab.errors import UserError
from danalab.train.config.flags import Answer, JsonFlags, Natural, Positional, setting


@dataclass(frozen=True, kw_only=True)
class Flags(JsonFlags):
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

    def __post_init__(self) -> None:
        if self.tables_only and self.out:
            raise UserError("--out is for the report; --tables-only writes none")


def run(flags: Flags) -> Answer:
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


VERBS = {"report": (Flags, run)}
