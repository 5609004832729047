"""Runs side by side: table, loss curves, tokens to equal loss."""

from dataclasses import dataclass
from pathlib import Path

from danalab.train.config.flags import Answer, JsonFlags, Positional, setting


@dataclass(frozen=True, kw_only=True)
class Flags(JsonFlags):
    run: Positional[tuple[Path, ...]] = setting(help="Run folders, or PACKED/NAME of a packed ladder.")
    baseline: str | None = setting(
        None,
        "Name of the run that the others are compared with; default the first adamw run, else the first, of those that "
        "did not diverge.",
    )
    out: Path | None = setting(
        None, "Folder for compare.md, loss-tokens.png, loss-compute.png (and .svg, -dark); default no files."
    )


def run(flags: Flags) -> Answer:
    """Runs side by side: final losses, tokens each needed to reach the baseline's loss, and the loss curves."""
    from danalab.experiments.comparison import (
        compare,
        comparison_table,
        limits,
        named_apart,
        read_curve,
        write_comparison,
    )
    from danalab.experiments.formats import as_text

    curves = named_apart([read_curve(folder) for folder in flags.run], flags.run)
    rows = compare(curves, flags.baseline)
    lines = [as_text(*comparison_table(rows), left=2), *(f"note: {limit}" for limit in limits(rows))]
    if flags.out is not None:
        lines.append(f"report: {write_comparison(curves, rows, flags.out)}")
    baseline = next(row["run"] for row in rows if row["is_baseline"])
    return Answer({"baseline": baseline, "runs": rows, "notes": limits(rows)}, lines)


VERBS = {"compare": (Flags, run)}
