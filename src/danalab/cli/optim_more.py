"""`danalab optim compare`: optimizers on small problems."""

import sys
from dataclasses import dataclass
from pathlib import Path

from danalab.cli._shared.options import JsonFlags
from danalab.cli.optim import SUBVERBS
from danalab.train.config.fields import Count, PathText, Section


@dataclass(frozen=True, kw_only=True)
class CompareConfig(Section):
    """Settings of `danalab optim compare`."""

    opts: tuple[PathText, ...] = ("adamw", "ademamix", "muon", "adana", "dana-star-mk4")
    """Optimizers; danalab optim list shows them all."""
    problems: tuple[str, ...] = ("quadratic", "matrix", "language")
    """Problems: quadratic, matrix, language."""
    trials: Count = 6
    """Learning rates tried for each optimizer on each problem."""
    seeds: Count = 3
    """Runs at the best learning rate."""
    jobs: Count | None = None
    """Searches at the same time, one thread each; default one for each core."""
    quick: bool = False
    """A tenth of the steps, 3 learning rates, one seed: a fast test that everything works."""
    out: Path = Path("optim-compare")
    """Folder for the page, figures and tables."""


@dataclass(frozen=True, kw_only=True)
class CompareFlags(JsonFlags, CompareConfig):
    pass


def compare(flags: CompareFlags) -> None:
    """Optimizers on three small problems, with learning rates tuned alike; minutes on two cores."""
    from danalab.report.formats import print_table
    from danalab.showcase.compare import HEADINGS, compare_optimizers, table_rows

    found = compare_optimizers(flags, lambda line: print(line, file=sys.stderr, flush=True))
    if flags.print_json(found.as_dict()):
        return
    print()
    print_table(HEADINGS, table_rows(found.results), left=2)
    print(f"\npage: {flags.out / 'index.html'}")


SUBVERBS.add("compare", (CompareFlags, compare))
