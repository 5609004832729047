"""One page about a ladder: compute saved, laws, curves, tuning, cost; figures and tables as files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from danalab.cli._shared.options import Positional


@dataclass(frozen=True, kw_only=True)
class Flags:
    ladder: Positional[Path]
    """Folder of a ladder or a sweep, or its ladder.jsonl."""
    out: Path | None = None
    """Folder of the report; default report/ in the ladder's folder."""
    baseline: str | None = None
    """Optimizer that the others are compared with; default adamw, or the first one that finished."""
    law: Literal["saturated", "broken", "chinchilla"] | None = None
    """Loss law: saturated, E + A C^-alpha; broken, with a second term; chinchilla, E + A N^-alpha + B D^-beta. Default
    saturated, or chinchilla where several sizes have several horizons."""
    convention: Literal["exact", "6nd", "6nd-total", "kaplan", "deepseek"] = "exact"
    """Convention of counting compute."""
    bootstrap: int = 200
    """Resamples for the intervals of the laws."""
    dollars_per_hour: float | None = None
    """Price of a device, for a column of costs [$ an hour]."""
    pack: bool = False
    """Write a folder to publish: with copies of rows and validation curves, and links that stay inside."""
    json: bool = False
    """Print one JSON object on standard output."""


def run(flags: Flags) -> None:
    """Write a self-contained page with every figure and table of a ladder."""
    import json
    import shutil

    from danalab.errors import UserError
    from danalab.ladder.preregistration import FILE as PREDICTIONS
    from danalab.report.ladder_report import read_report_data, write_report
    from danalab.report.tables.headline import verdict

    if flags.bootstrap < 0:
        raise UserError(f"--bootstrap {flags.bootstrap}: must be 0 or more")
    if flags.dollars_per_hour is not None and not flags.dollars_per_hour > 0:
        raise UserError(f"--dollars-per-hour {flags.dollars_per_hour:g}: must be positive [$ an hour]")
    if flags.pack and flags.out is None:
        raise UserError("--pack: --out must name the folder to publish")
    own = (flags.ladder if flags.ladder.is_dir() else flags.ladder.parent) / "report"
    if flags.out is None and own.is_symlink():  # in a ladder from elsewhere it may lead anywhere
        raise UserError(f"{own}: a symbolic link; give the folder of the report by --out")
    data = read_report_data(
        flags.ladder,
        baseline=flags.baseline,
        dollars_per_hour=flags.dollars_per_hour,
        law=flags.law,
        convention=flags.convention,
        n_bootstrap=flags.bootstrap,
    )
    page = write_report(data, flags.out or own, packed=flags.pack)
    if flags.pack and data.registered:
        shutil.copyfile(own.parent / PREDICTIONS, page.parent / PREDICTIONS)
    if flags.json:
        print(json.dumps({"page": str(page), **data.analysis.as_dict()}))
        return
    for sentence in verdict(data.analysis):
        print(sentence)
    print(f"report: {page}")
