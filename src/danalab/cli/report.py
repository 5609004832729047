"""A ladder's results: compute saved, laws of learning rate and loss, curves, cost; report.md, or tables only."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from danalab.cli._shared.options import JsonFlags, Positional
from danalab.errors import UserError
from danalab.train.config.fields import Natural


@dataclass(frozen=True, kw_only=True)
class Flags(JsonFlags):
    ladder: Positional[Path]
    """Folder of a ladder or a sweep, packed or not, or its ladder.jsonl."""
    out: Path | None = None
    """Folder of the report; default report/ in the ladder's folder."""
    tables_only: bool = False
    """Print the tables and write nothing."""
    baseline: str | None = None
    """Optimizer that the others are compared with; default adamw, or the first one that finished."""
    law: Literal["saturated", "broken", "chinchilla"] | None = None
    """Loss law: saturated, E + A C^-alpha; broken, with a second term; chinchilla, E + A N^-alpha + B D^-beta. Default
    saturated, or chinchilla where several sizes have several horizons."""
    joint: bool = True
    """One E for all optimizers; otherwise each law has its own."""
    convention: Literal["exact", "model"] = "exact"
    """Compute of the model, or with the optimizer's own matrix products (exact)."""
    bootstrap: Natural = 200
    """Ladders drawn again for the intervals of the laws."""
    seed: int = 0
    """Seed of these draws."""
    rules: Path | None = None
    """File to write with the fitted learning-rate laws, which danalab plan and train read with --rules."""

    def __post_init__(self) -> None:
        if self.tables_only and self.out:
            raise UserError("--out is for the report; --tables-only writes none")

    def analysis(self) -> dict[str, Any]:
        """The arguments of the analysis."""
        return {
            "baseline": self.baseline,
            "law": self.law,
            "convention": self.convention,
            "joint": self.joint,
            "n_bootstrap": self.bootstrap,
            "seed": self.seed,
        }


def run(flags: Flags) -> None:
    """Fit the laws of a ladder, compute the compute saved, and write a report with every figure and table."""
    from danalab.experiments.analysis import analyse, fitted_rules
    from danalab.experiments.formats import print_table
    from danalab.experiments.report import answer, remarks, tables, write_report
    from danalab.experiments.rows import read_ladder

    folder = flags.ladder if flags.ladder.is_dir() else flags.ladder.parent
    found = analyse(read_ladder(flags.ladder), **flags.analysis())
    page = None if flags.tables_only else write_report(found, flags.out or folder / "report")
    if flags.rules is not None:
        fitted_rules(found).write(flags.rules)
    if flags.print_json({**({} if page is None else {"report": str(page)}), **found.as_dict()}):
        return
    print("\n".join(answer(found)))
    if page is not None:
        print(f"report: {page}")
        return
    for title, (headings, lines) in tables(found).items():
        if lines:
            print(f"\n{title}")
            print_table(headings, lines, 1)
    for sentence in remarks(found):
        print(sentence)
    for note in found.notes:
        print(f"note: {note}")
