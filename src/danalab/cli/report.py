"""A ladder's results: laws of learning rate and loss, compute saved, curves, tuning, cost; one page, or tables only."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from danalab.cli._shared.options import JsonFlags, Positional
from danalab.errors import UserError
from danalab.ladder.fit import Convention, LawKind
from danalab.train.config.fields import Natural, Positive

if TYPE_CHECKING:
    from danalab.ladder.studies import Analysis


@dataclass(frozen=True, kw_only=True)
class Flags(JsonFlags):
    ladder: Positional[Path]
    """Folder of a ladder or a sweep, packed or not, or its ladder.jsonl."""
    out: Path | None = None
    """Folder of the report; default report/ in the ladder's folder."""
    tables_only: bool = False
    """Print the tables and write no page."""
    baseline: str | None = None
    """Optimizer that the others are compared with; default adamw, or the first one that finished."""
    law: LawKind | None = None
    """Loss law: saturated, E + A C^-alpha; broken, with a second term; chinchilla, E + A N^-alpha + B D^-beta. Default
    saturated, or chinchilla where several sizes have several horizons."""
    joint: bool = True
    """One E for all optimizers; otherwise each law has its own."""
    convention: Convention = "exact"
    """Convention of counting compute."""
    predict: tuple[Positive, ...] = ()
    """Sizes for which to predict learning rates [parameters without embeddings]; default 2, 4, 10 x the largest."""
    within: Positive = 1.0
    """Show the interval of learning rates within this share of the best loss [percent of the loss]."""
    bootstrap: Natural = 200
    """Resamples for the intervals of the laws."""
    seed: int = 0
    """Seed of the resampling."""
    rules: Path | None = None
    """File to write with the fitted learning-rate laws, which danalab plan and train read with --rules."""
    dollars_per_hour: Positive | None = None
    """Price of a device, for a column of costs on the page [$/hour]."""
    pack: bool = False
    """Write a folder to publish: with the rows and metrics packed into one file, and links that stay inside."""

    def __post_init__(self) -> None:
        if self.tables_only and (self.out or self.pack or self.dollars_per_hour is not None):
            raise UserError("--out, --pack and --dollars-per-hour are for the page; --tables-only writes none")
        if self.pack and self.out is None:
            raise UserError("--pack: --out must name the folder to publish")

    def analysis(self) -> dict[str, Any]:
        """The arguments of the analysis."""
        return {
            "baseline": self.baseline, "law": self.law, "convention": self.convention, "joint": self.joint,
            "predict": self.predict, "within": self.within / 100, "n_bootstrap": self.bootstrap, "seed": self.seed,
        }  # fmt: skip


def run(flags: Flags) -> None:
    """Fit the laws of a ladder, compute the compute saved, and write a page with every figure and table."""
    from danalab.ladder.analysis import analyse, fitted_rules
    from danalab.ladder.rows import read_ladder

    folder = flags.ladder if flags.ladder.is_dir() else flags.ladder.parent
    if flags.tables_only:
        analysis, page = analyse(read_ladder(flags.ladder), **flags.analysis()), None
    else:
        from danalab.report.ladder_report import read_report_data, write_report

        own = folder / "report"
        if flags.out is None and own.is_symlink():  # in a ladder from elsewhere it may lead anywhere
            raise UserError(f"{own} is a symbolic link; give the folder of the report by --out")
        data = read_report_data(flags.ladder, dollars_per_hour=flags.dollars_per_hour, **flags.analysis())
        analysis, page = data.analysis, write_report(data, flags.out or own, packed=flags.pack)
    if flags.rules is not None:
        fitted_rules(analysis).write(flags.rules)
    if flags.print_json({**({"page": str(page)} if page else {}), **analysis.as_dict()}):
        return
    if page is None:
        _print_tables(analysis, folder)
    else:
        from danalab.report.headline import verdict

        for sentence in verdict(analysis):
            print(sentence)
        print(f"report: {page}")


def _print_tables(analysis: "Analysis", folder: Path) -> None:
    from danalab.report.formats import print_table
    from danalab.report.headline import remarks
    from danalab.report.tables import analysis_tables

    for title, (headings, lines) in analysis_tables(analysis, folder=folder).values():
        if lines:
            print(f"\n{title}")
            print_table(headings, lines, 1)
    for sentence in remarks(analysis):
        print(sentence)
    for note in analysis.notes:
        print(f"note: {note}")
    if analysis.excluded:
        runs = "run" if len(analysis.excluded) == 1 else "runs"
        print(f"{len(analysis.excluded)} {runs} left out, unfinished or not finite: {', '.join(analysis.excluded)}")
