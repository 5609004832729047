"""Runs side by side: table, loss curves, tokens to equal loss."""

from dataclasses import asdict, dataclass
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
    """Folder for compare.html, loss-tokens.png, loss-flops.png (and .svg, .pdf), table.md; default no files."""


def run(flags: Flags) -> None:
    """Runs side by side: final losses, tokens each needed to reach the baseline's loss, and the loss curves."""
    from danalab.errors import UserError
    from danalab.report.comparison import COLUMNS, compare, named_apart, noise_note, table_cells, write_comparison
    from danalab.report.data import read_curve
    from danalab.report.formats import print_table

    chosen = (*flags.runs, *flags.run)
    if not chosen:
        raise UserError("name at least one run folder: danalab compare runs/A runs/B")
    for folder in chosen:
        if not (folder / "config.json").is_file() and any(folder.glob("*/config.json")):
            raise UserError(f"{folder}: a folder of runs; name those to compare, all of them as {folder}/*")
    curves = named_apart([read_curve(folder) for folder in chosen], chosen)
    rows = compare(curves, flags.baseline)
    baseline = next(curve for curve, row in zip(curves, rows, strict=True) if row.is_baseline)
    if flags.out is not None:
        folders = dict(zip((curve.name for curve in curves), chosen, strict=True))
        write_comparison(curves, rows, baseline, folders, flags.out)
    if flags.print_json({"baseline": baseline.name, "runs": [asdict(row) for row in rows]}):
        return
    print_table(list(COLUMNS), [table_cells(row) for row in rows], left=2)
    if note := noise_note(rows):
        print(f"note: {note}")
    if flags.out is not None:
        print(f"drawn: {flags.out / 'compare.html'}")
