"""`danalab optim compare`: optimizers on small problems."""

import sys
from dataclasses import dataclass

from danalab.cli._shared.options import JsonFlags
from danalab.cli.optim import SUBVERBS
from danalab.experiments.settings import CompareConfig


@dataclass(frozen=True, kw_only=True)
class CompareFlags(JsonFlags, CompareConfig):
    pass


def compare(flags: CompareFlags) -> None:
    """Optimizers on three small problems, with learning rates tuned alike; minutes on two cores."""
    from danalab.experiments.formats import print_table
    from danalab.experiments.optim_compare import compare_optimizers, results_table

    found = compare_optimizers(flags, lambda line: print(line, file=sys.stderr, flush=True))
    if flags.print_json(found.as_dict()):
        return
    print_table(*results_table(found.results), left=2)
    print(f"\nreport: {flags.out / 'report.md'}")


SUBVERBS.add("compare", (CompareFlags, compare))
