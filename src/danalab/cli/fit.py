"""The laws of a ladder, and the compute that its optimizers save."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from danalab.cli._shared.options import Positional


@dataclass(frozen=True, kw_only=True)
class Flags:
    ladder: Positional[Path]
    """Folder of a ladder or a sweep, or its ladder.jsonl."""
    baseline: str | None = None
    """Optimizer that the others are compared with; default adamw, or the first one that finished."""
    law: Literal["saturated", "broken", "chinchilla"] | None = None
    """Loss law: saturated, E + A C^-alpha; broken, with a second term; chinchilla, E + A N^-alpha + B D^-beta. Default
    saturated, or chinchilla where several sizes have several horizons."""
    joint: bool = True
    """One E for all optimizers; otherwise each law has its own."""
    convention: Literal["exact", "6nd", "6nd-total", "kaplan", "deepseek"] = "exact"
    """Convention of counting compute."""
    predict: tuple[float, ...] = ()
    """Sizes for which to predict learning rates [parameters without embeddings]; default 2, 4, 10 x the largest."""
    within: float = 1.0
    """Show the interval of learning rates within this share of the best loss [percent of the loss]."""
    bootstrap: int = 200
    """Resamples for the intervals of the laws."""
    seed: int = 0
    """Seed of the resampling."""
    rules: Path | None = None
    """File to write with the fitted learning-rate laws, which danalab plan and train read with --rules."""
    json: bool = False
    """Print one JSON object on standard output."""


def run(flags: Flags) -> None:
    """Fit the laws of learning rate and loss to a ladder's rows; compute the compute saved, with intervals."""
    import json

    from danalab.errors import UserError
    from danalab.ladder.analysis import analyse
    from danalab.ladder.preregistration import outcomes, read_predictions
    from danalab.ladder.rules import fitted_rules
    from danalab.ladder.runs.rows import read_ladder
    from danalab.report.tables.console import print_table
    from danalab.report.tables.horizon import budget_sentence, horizon_tables
    from danalab.report.tables.ladder import law_table, lr_law_table, saved_table, tuned_table
    from danalab.report.tables.rates import predicted_table, shared_curvature_table, tolerance_table
    from danalab.report.tables.registered import TITLE, entropy_sentence, epochs_sentence, registered_table

    if flags.bootstrap < 0:
        raise UserError(f"--bootstrap {flags.bootstrap}: must be 0 or more")
    if not flags.within > 0:
        raise UserError(f"--within {flags.within:g}: must be positive [percent of the loss]")
    for size in flags.predict:
        if not 0 < size < math.inf:
            raise UserError(f"--predict {size:g}: sizes must be finite and positive [parameters]")
    rows = read_ladder(flags.ladder)
    found = analyse(
        rows,
        baseline=flags.baseline,
        law=flags.law,
        convention=flags.convention,
        joint=flags.joint,
        predict=flags.predict,
        within=flags.within / 100,
        n_bootstrap=flags.bootstrap,
        seed=flags.seed,
    )
    if flags.rules is not None:
        fitted_rules(found).write(flags.rules)
    if flags.json:
        print(json.dumps(found.as_dict(), allow_nan=False))
        return
    predictions = read_predictions(flags.ladder if flags.ladder.is_dir() else flags.ladder.parent)
    kinds = {law.kind for law in found.loss_laws.values()} or {"saturated"}
    law = {
        "saturated": "E + A C^-alpha", "broken": "E + A C^-alpha + B C^-beta",
        "chinchilla": "E + A N^-alpha + B D^-beta",
    }[kinds.pop()]  # fmt: skip
    for title, (headings, lines), left in (
        ("Tuned runs", tuned_table(found), 1),
        ("Compute saved against " + found.baseline, saved_table(found), 1),
        *((title, table, 1) for title, table in horizon_tables(found)),
        (f"Laws of the final loss, {law}" + ", one E for all" * flags.joint, law_table(found), 1),
        (TITLE, registered_table(outcomes(predictions, found.tuned)), 1),
        ("Laws of the best learning rate, a (b + P)^d", lr_law_table(found), 1),
        ("Learning rates by these laws", predicted_table(found), 1),
        ("Learning rates that lose little", tolerance_table(found), 1),
        (
            "Cost of a wrong learning rate [nats a token], one curvature for all sizes",
            shared_curvature_table(found),
            1,
        ),
    ):
        if lines:
            print(f"\n{title}")
            print_table(headings, lines, left)
    sentences = [] if found.horizon is None else [budget_sentence(found.horizon)]
    for sentence in (*sentences, entropy_sentence(found), epochs_sentence(found)):
        if sentence is not None:
            print(sentence)
    for note in found.notes:
        print(f"note: {note}")
    if found.excluded:
        runs = "run" if len(found.excluded) == 1 else "runs"
        print(f"{len(found.excluded)} {runs} left out, unfinished or not finite: {', '.join(found.excluded)}")
