"""How strong should weight decay be, and how does that depend on the length of the run? What is run, and its tables.

The trials are in `danalab.benchmarks.decay.trials`, the answers in docs/decay-law.md.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from danalab.benchmarks.decay.small_problems import small_problems
from danalab.benchmarks.decay.trials import Cell, Results
from danalab.optim.run_length import warmup_steps


def cells(
    problems: Iterable[str], steps: Iterable[int], laws: Mapping[str, tuple[str, ...]], share: int = 1
) -> list[Cell]:
    """All combinations; `share`: the batch is that many times smaller."""
    return [
        Cell(problem, length, small_problems()[problem].batch // share, opt, law, warmup_steps(length))
        for length in steps
        for problem in problems
        for opt, each in laws.items()
        for law in each
    ]


THREE = ("mlp", "teacher", "transformer")
ORDER = ("transformer", "mlp", "teacher", "recurrent")
SHOWN = {"ADana": "adana", "Dana-MK4": "dana-mk4", "Dana-Star": "dana-star", "Dana-Star-MK4": "dana-star-mk4"}
DEFAULT = "2 lr, 4/t"
"""The law of `omega=4.0, horizon=STEPS`."""
LAWS = {
    "adana": ("none", "2 lr, 4/t", "1 lr, 4/t", "0.5 lr, 4/t", "4/t"),
    "adamw": ("none", "0.5 lr, 4/t", "2 lr, 4/t"),
}
FEW = {"adana": ("none", "2 lr, 4/t", "1 lr, 4/t"), "adamw": ("none", "0.5 lr, 4/t", "2 lr, 4/t")}
FAMILY: dict[str, tuple[str, ...]] = dict.fromkeys(("dana-star-mk4", "dana-mk4", "dana-star"), ("2 lr, 4/t",))
ADANA = {"adana": ("2 lr, 4/t",)}
FINDINGS = ("beta2=0.9", "beta2=0.95", "beta2=0.99", "beta2=0.999", "kappa=0.7", "kappa=1.0")
FEWEST = {"adana": ("none", "2 lr, 4/t"), "adamw": ("none", "0.5 lr, 4/t")}


def phases() -> dict[str, list[Cell]]:
    """What is run, by name."""
    return {
        "short": cells(THREE, (60, 150), LAWS),
        "shortest": cells(THREE, (30,), FEW),
        "middle": cells(THREE, (600,), LAWS),
        "bounds": cells(THREE, (30, 60, 150, 600), {"adamw": ("1 lr, 4/t",)}),
        "family": cells(THREE, (60, 150, 600), FAMILY),
        "held-out": cells(("recurrent",), (60, 600), FEWEST),
        "long": cells(THREE, (3000,), FEWEST),
        "batch": cells(THREE, (150, 600), FEWEST, share=4),
        "family-long": cells(THREE, (3000,), FAMILY),
        "longest": cells(("teacher", "mlp"), (10_000,), FEWEST),
        "betas": [
            replace(cell, settings="beta2=0.999") for cell in cells(THREE, (30, 60, 150, 600), {"adamw": ("none",)})
        ],
        "findings": [
            replace(cell, settings=settings)
            for settings in FINDINGS
            for cell in cells(THREE, (150,), ADANA) + cells(("mlp", "teacher"), (600,), ADANA)
        ],
    }


def measure(names: Iterable[str], results: Results, say: Callable[[str], None]) -> None:
    """Run the phases; a search begins at the best rate of the law before it.

    Args:
        names: keys of `phases()`.
        results: where runs are kept; those that it has are not made again.
        say: called with each line of text.
    """
    for name in names:
        starts: dict[Any, float] = {}
        for cell in phases()[name]:
            place = (cell.problem, cell.opt)
            start = starts.get(place) or results.start(cell)
            starts[place] = results.tune(cell, start)
            lr, losses = results.best(cell) or (0.0, [math.nan])
            say(
                f"{cell.problem:12} {cell.steps:5} x {cell.batch:3}  {cell.opt:13} {cell.law:12} lr {lr:.4f}  "
                f"{statistics.fmean(losses):.4f}  {[round(x, 4) for x in losses]}"
            )
