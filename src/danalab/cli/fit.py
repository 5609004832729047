"""The laws of a ladder, and the compute that its optimizers save."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional


@dataclass(frozen=True, kw_only=True)
class Flags:
    ladder: Positional[Path]
    """Folder of a ladder or a sweep, or its ladder.jsonl."""
    baseline: str = "adamw"
    """Optimizer that the others are measured against."""
    law: Literal["saturated", "broken"] = "saturated"
    """Loss law: E + A C^-alpha, or with a second term."""
    convention: Literal["exact", "6nd", "6nd-total", "kaplan", "deepseek"] = "exact"
    """What counts as compute."""
    bootstrap: int = 200
    """Resamples for the intervals of the laws."""
    json: bool = False
    """Print one JSON object on standard output."""


def run(flags: Flags) -> None:
    """Fit the laws of learning rate and loss to a ladder's rows, and reckon the compute saved, with intervals."""
    import json

    from danalab.errors import UserError
    from danalab.ladder.analysis import analyse
    from danalab.ladder.rows import read_ladder
    from danalab.report.console import print_table
    from danalab.report.ladder_tables import law_table, saved_table, tuned_table

    if flags.bootstrap < 0:
        raise UserError(f"--bootstrap {flags.bootstrap}: must be 0 or more")
    found = analyse(
        read_ladder(flags.ladder),
        baseline=flags.baseline,
        law=flags.law,
        convention=flags.convention,
        n_bootstrap=flags.bootstrap,
    )
    if flags.json:
        print(json.dumps(found.as_dict()))
        return
    for title, (headings, lines), left in (
        ("Tuned runs", tuned_table(found), 1),
        ("Compute saved against " + found.baseline, saved_table(found), 1),
        ("Laws of the final loss", law_table(found), 1),
    ):
        if lines:
            print(f"\n{title}")
            print_table(headings, lines, left)
    for note in found.notes:
        print(f"note: {note}")
    if found.excluded:
        print(f"{len(found.excluded)} runs left out, unfinished or not finite: {', '.join(found.excluded)}")
