"""Runs side by side: final losses, and the compute at which each reached the baseline's.

    compute saved = 1 - C_cross / C_final

C_cross is the compute at which a run's validation curve first falls to the baseline's last validation loss, C_final
the baseline's whole compute (arXiv 2602.05298). A curve that never falls that far is "not reached". Where the first
evaluation is below already, the crossing is not seen: then both are bounds.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from danalab.errors import UserError
from danalab.files import write_atomically
from danalab.report.data import RunCurve, tokens_to_reach
from danalab.report.formats import Linked, as_markdown
from danalab.sweep.rows import optimizer_flops_of


@dataclass(frozen=True)
class ComparedRun:
    """One run against the baseline."""

    run: str
    opt: str
    lr: float
    seed: int
    params: int
    tokens: int
    flops: float
    val_loss: float
    """Final, nats/token; over the whole validation split where the run ended."""
    val_bpb: float | None
    """Final, bits a byte."""
    tokens_to_baseline: float | None
    """Tokens needed to reach the baseline's last validation loss; None: not reached."""
    compute_saved: float | None
    """1 - FLOPs needed / FLOPs of the baseline, those of the optimizers' own matrix products included; None: not
    reached."""
    is_bound: bool
    """The first evaluation was below the baseline's loss: fewer tokens would do, and more is saved."""
    seconds: float | None
    """Training time without evaluation."""
    tokens_per_second: float | None
    status: str
    is_baseline: bool


def compare(curves: Sequence[RunCurve], baseline: str | None = None) -> list[ComparedRun]:
    """One row per run, in order. UserError: `baseline` is not among the runs, or two runs share a name."""
    names = [curve.name for curve in curves]
    if len(set(names)) < len(names):
        raise UserError(f"two runs have the same name: {', '.join(sorted(names))}")
    if baseline is None:
        base = next((curve for curve in curves if curve.opt == "adamw"), curves[0])
    elif baseline in names:
        base = curves[names.index(baseline)]
    else:
        raise UserError(f"--baseline {baseline} is not among the runs: {', '.join(names)}")
    return [_row(curve, base) for curve in curves]


def _row(curve: RunCurve, base: RunCurve) -> ComparedRun:
    config, summary = curve.config["config"], curve.summary
    reached = tokens_to_reach(curve, base)
    cost = None if reached is None else reached * _flops_per_token(curve)
    return ComparedRun(
        run=curve.name,
        opt=curve.opt,
        lr=config["lr"],
        seed=config["seed"],
        params=curve.config["params"],
        tokens=curve.final.tokens,
        flops=curve.final.flops,
        val_loss=summary.get("val/loss", curve.final.val_loss),
        val_bpb=summary.get("val/bpb"),
        tokens_to_baseline=reached,
        compute_saved=None if cost is None else 1 - cost / (base.final.tokens * _flops_per_token(base)),
        is_bound=reached is not None and curve is not base and reached <= min(point.tokens for point in curve.points),
        seconds=summary.get("time"),
        tokens_per_second=summary.get("tokens_per_second"),
        status=summary.get("status", "unfinished"),
        is_baseline=curve is base,
    )


def _flops_per_token(curve: RunCurve) -> float:
    """Of the model, and of the optimizer's own matrix products where they are known."""
    config, last = curve.config["config"], curve.final
    return (last.flops + (optimizer_flops_of(config["opt"], config, last.step) or 0.0)) / last.tokens


def named_apart(curves: Sequence[RunCurve], folders: Sequence[Path]) -> list[RunCurve]:
    """Runs that share a name, renamed to their paths."""
    places = [folder.resolve() for folder in folders]
    for i, place in enumerate(places):
        if place in places[:i]:
            raise UserError(f"{folders[i]}: named twice")
    names = [curve.name for curve in curves]
    pairs = zip(curves, folders, strict=True)
    return [curve if names.count(curve.name) == 1 else replace(curve, name=str(folder)) for curve, folder in pairs]


COLUMNS = {
    "run": ("run", "{}"),
    "optimizer": ("opt", "{}"),
    "parameters": ("params", "{:,.0f}"),
    "peak lr": ("lr", "{:.3g}"),
    "val loss": ("val_loss", "{:.4f}"),
    "bits/byte": ("val_bpb", "{:.4f}"),
    "tokens": ("tokens", "{:,.0f}"),
    "tokens to baseline's loss": ("tokens_to_baseline", "{:,.0f}"),
    "compute saved": ("compute_saved", "{:+.1%}"),
    "seconds": ("seconds", "{:.1f}"),
    "tokens/s": ("tokens_per_second", "{:,.0f}"),
}
"""Headings of the table -> field of a row, and its form."""
_BOUNDS = {"tokens_to_baseline": "<= ", "compute_saved": ">= "}
"""Fields that compare with the baseline -> sign of a bound."""


def table_cells(row: ComparedRun) -> list[str]:
    """One line of the table as text, in the order of `COLUMNS`."""
    return [_cell(field, form, row) for field, form in COLUMNS.values()]


def _cell(field: str, form: str, row: ComparedRun) -> str:
    value: Any = getattr(row, field)
    if field in _BOUNDS and row.is_baseline:
        return "(baseline)"
    if value is None:
        return "not reached" if field in _BOUNDS else "-"
    return (_BOUNDS.get(field, "") if row.is_bound else "") + form.format(value)


def noise_note(rows: Sequence[ComparedRun]) -> str | None:
    """A note on optimizers with one seed; None where each has several."""
    single = [opt for opt in dict.fromkeys(row.opt for row in rows) if len({r.seed for r in rows if r.opt == opt}) == 1]
    if not single or len(rows) == 1:
        return None
    return f"one seed of {', '.join(single)}: the noise is not known, so small differences may be chance"


def markdown_table(rows: Sequence[ComparedRun]) -> str:
    return as_markdown((list(COLUMNS), [table_cells(row) for row in rows]))


def write_comparison(
    curves: Sequence[RunCurve], rows: Sequence[ComparedRun], baseline: RunCurve, folders: Mapping[str, Path], out: Path
) -> Path:
    """Write compare.html, the loss curves as PNG, SVG and PDF, and table.md into `out`; returns the page."""
    from danalab.colors import optimizer_color
    from danalab.report.figures.drawing import save_figure, svg_text
    from danalab.report.figures.training import CURVES_CAPTION, loss_figure
    from danalab.report.page import Page

    out.mkdir(parents=True, exist_ok=True)
    page = Page(
        "Runs side by side",
        f"Compared with {baseline.name}: compute saved is 1 \N{MINUS SIGN} C/C0, where the baseline spent C0 for its "
        "final validation loss and the other run needed C to reach it.",
    )
    headings = [heading for heading in COLUMNS if heading != "optimizer"]
    lines = []
    for row in rows:
        cells = dict(zip(COLUMNS, table_cells(row), strict=True))
        run = Linked(row.run, os.path.relpath(folders[row.run], out))
        lines.append([cells["optimizer"], run, *(cells[heading] for heading in headings if heading != "run")])
    page.table(["optimizer", *headings], lines, mark=optimizer_color)
    if note := noise_note(rows):
        page.paragraph(note[0].upper() + note[1:] + ".")
    for axis, words in (("tokens", "tokens"), ("flops", "compute")):
        figure = loss_figure(curves, axis, baseline)
        svg = svg_text(figure)
        files = save_figure(figure, out / f"loss-{axis}", svg)
        caption = f"Validation loss against {words}. {CURVES_CAPTION}"
        page.figure(figure, caption, [(file.suffix[1:].upper(), file.name) for file in files], svg)
    write_atomically(out / "table.md", markdown_table(rows))
    write_atomically(out / "compare.html", page.render())
    return out / "compare.html"
