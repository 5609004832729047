"""Runs side by side: table, loss curves, tokens to equal loss."""

from dataclasses import dataclass
from pathlib import Path

from danalab.cli._shared.options import JsonFlags, Positional


@dataclass(frozen=True, kw_only=True)
class Flags(JsonFlags):
    runs: Positional[tuple[Path, ...]] = ()
    """Run folders, or PACKED/NAME of a packed ladder."""
    run: tuple[Path, ...] = ()
    """Run folders, added to the arguments."""
    baseline: str | None = None
    """Name of the run that the others are compared with; default the first adamw run, else the first."""
    out: Path | None = None
    """Folder for compare.md, loss-tokens.png, loss-compute.png (and .svg, -dark); default no files."""


def run(flags: Flags) -> None:
    """Runs side by side: final losses, tokens each needed to reach the baseline's loss, and the loss curves."""
    from danalab.errors import UserError
    from danalab.experiments.comparison import (
        compare,
        comparison_table,
        limits,
        named_apart,
        read_curve,
        write_comparison,
    )
    from danalab.experiments.formats import print_table

    chosen = (*flags.runs, *flags.run)
    if not chosen:
        raise UserError("name at least one run folder: danalab compare runs/A runs/B")
    for folder in chosen:
        if not (folder / "config.json").is_file() and any(folder.glob("*/config.json")):
            raise UserError(f"{folder}: a folder of runs; name those to compare, all of them as {folder}/*")
    curves = named_apart([read_curve(folder) for folder in chosen], chosen)
    rows = compare(curves, flags.baseline)
    page = None if flags.out is None else write_comparison(curves, rows, flags.out)
    baseline = next(row["run"] for row in rows if row["is_baseline"])
    if flags.print_json({"baseline": baseline, "runs": rows, "notes": limits(rows)}):
        return
    print_table(*comparison_table(rows), left=2)
    for limit in limits(rows):
        print(f"note: {limit}")
    if page is not None:
        print(f"report: {page}")
