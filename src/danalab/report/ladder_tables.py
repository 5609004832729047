"""The tables of a ladder, as headings and lines of text: for the terminal, Markdown, LaTeX and CSV alike."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from danalab.ladder.analysis import Analysis
from danalab.ladder.saved import Saved
from danalab.ladder.statistics import Interval

Table = tuple[list[str], list[list[str]]]


def tuned_table(found: Analysis) -> Table:
    """A line for each optimizer and size: its best learning rate, how many were tried, its loss over seeds."""
    lines = [
        [
            each.opt,
            f"{each.params:,}",
            f"{each.flops:.3g}",
            f"{each.lr:.3g}",
            str(each.trials),
            str(len(each.runs)),
            f"{each.loss:.4f}",
            "-" if each.spread is None else f"{each.spread:.4f}",
        ]
        for opt in found.opts
        for each in found.at(opt)
    ]
    return ["optimizer", "parameters", "FLOPs", "peak lr", "trials", "seeds", "val loss", "sd over seeds"], lines


def saved_table(found: Analysis) -> Table:
    """A line for each contender and size, and one for each contender over all sizes by the laws."""
    lines = []
    for opt in found.opts[1:]:
        for params, saved in sorted(found.saved.get(opt, {}).items()):
            lines.append([opt, f"{params:,}", *saved_cells(saved)])
        if opt in found.gains:
            gain = found.gains[opt]
            words = "no loss in common" if gain.mean is None else f"{gain.mean:+.1%}"
            lines.append([opt, "all, by the laws", words, interval_cell(gain.interval)])
    return ["optimizer", "parameters", "compute saved", "95% interval"], lines


def saved_cells(saved: Saved) -> list[str]:
    """(compute saved, interval) for people."""
    if saved.saved is None:
        return ["not reached", "-"]
    return [f"{saved.saved:+.1%}", interval_cell(saved.interval)]


def interval_cell(interval: Interval | None) -> str:
    """An interval of shares for people; what is not known is said."""
    return "noise not known" if interval is None else f"{interval.low:+.1%} to {interval.high:+.1%}"


def law_table(found: Analysis) -> Table:
    """A line for each optimizer's loss law."""
    lines = []
    for opt, law in found.loss_laws.items():
        cells = []
        for name, value in law.coefficients.items():
            interval = law.intervals.get(name)
            cells.append(f"{value:.4g}" + (f" ({interval.low:.4g} to {interval.high:.4g})" if interval else ""))
        lines.append([opt, *cells, f"{law.r2:.5f}"])
    names = list(next(iter(found.loss_laws.values())).coefficients) if found.loss_laws else []
    return ["optimizer", *names, "R2 of log loss"], lines


def lr_law_table(found: Analysis) -> Table:
    """A line for each optimizer's learning-rate law, lr = a (b + P)^d."""
    lines = [
        [opt, f"{law.a:.4g}", f"{law.b:.4g}", f"{law.d:.4g}", str(law.n_sizes), str(law.n_trials)]
        for opt, law in found.lr_laws.items()
    ]
    return ["optimizer", "a", "b", "d", "sizes", "trials"], lines


def cost_table(rows: Sequence[Mapping[str, Any]], dollars_per_hour: float | None = None) -> Table:
    """Device-hours of each optimizer's runs, as logged, evaluation apart; with a price, the cost."""
    hours: dict[str, list[float]] = defaultdict(list)
    devices: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        if row.get("seconds"):
            hours[row["opt"]].append(row["seconds"] * row.get("world_size", 1) / 3600)
            devices[row["opt"]].add(str(row.get("device", "?")))
    lines = [
        [opt, ", ".join(sorted(devices[opt])), str(len(spent)), f"{sum(spent):.2f}"]
        + ([] if dollars_per_hour is None else [f"{sum(spent) * dollars_per_hour:.2f}"])
        for opt, spent in hours.items()
    ]
    priced = [] if dollars_per_hour is None else [f"cost at {dollars_per_hour:g} $/h"]
    return ["optimizer", "device", "runs", "device-hours", *priced], lines


def as_markdown(table: Table) -> str:
    """For a README."""
    headings, lines = table
    rows = ["| " + " | ".join(headings) + " |", "|" + " --- |" * len(headings)]
    return "\n".join(rows + ["| " + " | ".join(line) + " |" for line in lines]) + "\n"


def as_latex(table: Table) -> str:
    """For a paper, with booktabs."""
    headings, lines = table
    columns = "l" + "r" * (len(headings) - 1)
    body = [" & ".join(map(_escaped, line)) + r" \\" for line in lines]
    head = " & ".join(map(_escaped, headings)) + r" \\"
    parts = [
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        head,
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(parts) + "\n"


def _escaped(text: str) -> str:
    for character in "%_&#":
        text = text.replace(character, "\\" + character)
    return text


def as_csv(table: Table) -> str:
    """For a spreadsheet."""
    text = io.StringIO()
    writer: Sequence[Sequence[str]] = [table[0], *table[1]]
    csv.writer(text, lineterminator="\n").writerows(writer)
    return text.getvalue()
