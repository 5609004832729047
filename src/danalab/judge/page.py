"""The page of a judgement: its sentence, the curves of both sides, and the interval at each look; and the board."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from danalab.colors import optimizer_color
from danalab.files import write_atomically
from danalab.judge.judge import Judged
from danalab.judge.verdict import bounds
from danalab.judge.workers import RunResult
from danalab.report.page import Page

BOARD_HEADINGS = ("track", "contender", "baseline", "verdict", "effect", "interval", "compute saved", "pairs", "looks")


def write_page(judged: Sequence[Judged], path: Path) -> None:
    """One section for each contender."""
    page = Page("A judgement", "Equal trials of learning rates, then paired seeds until the answer is known.")
    for each in judged:
        verdict = each.verdict
        page.heading(f"{verdict.contender} against {verdict.baseline}")
        page.paragraph(verdict.sentence())
        page.bullets([
            ("decision", verdict.decision),
            ("rates", f"{verdict.contender} {verdict.rates[0]:.3g}, {verdict.baseline} {verdict.rates[1]:.3g}"),
            ("cost", f"{verdict.runs} runs made for it, {verdict.seconds:.0f} s"),
            ("look", f"{verdict.look}, with alpha {verdict.alpha:.2g}"),
            *(("warning", line) for line in verdict.warnings),
            *(("failed run", line) for line in verdict.failures),
        ])  # fmt: skip
        complete = [pair for pair in each.pairs if pair[0].loss is not None and pair[1].loss is not None]
        if complete:
            page.figure(_curves(each, complete), f"Loss of the {len(complete)} paired seeds; thick: the means.")
        if len(complete) > 1:
            looks = "Difference of each pair (dots), and the interval of their mean at each look"
            page.figure(_looks(each, complete), f"{looks}; between the dashed lines counts as equal.")
    write_atomically(path, page.render())


def _curves(judged: Judged, pairs: Sequence[tuple[RunResult, RunResult]]) -> Figure:
    verdict = judged.verdict
    figure = Figure(figsize=(5.6, 3.6), layout="constrained")
    axes = figure.subplots()
    colors = (optimizer_color("adamw"), optimizer_color("adana"))
    for side, label, color in zip((0, 1), (verdict.baseline, verdict.contender), colors, strict=True):
        losses = np.array([pair[side].losses for pair in pairs])
        axes.plot(pairs[0][side].steps, losses.T, color=color, linewidth=0.5, alpha=0.4)
        axes.plot(pairs[0][side].steps, losses.mean(axis=0), color=color, linewidth=2, label="\n".join(wrap(label, 60)))
    finals = [result.losses[-1] for pair in pairs for result in pair]
    first = max(pair[0].losses[0] for pair in pairs)
    axes.set_ylim(min(finals) - 0.03 * (first - min(finals)), min(finals) + 0.6 * (first - min(finals)))
    axes.set(xlabel="optimizer steps", ylabel=f"loss [{verdict.unit}]")
    axes.grid(True, alpha=0.3, linewidth=0.6)
    axes.legend(frameon=False, fontsize=8)
    return figure


def _looks(judged: Judged, pairs: Sequence[tuple[RunResult, RunResult]]) -> Figure:
    verdict = judged.verdict
    differences = [other.losses[-1] - base.losses[-1] for base, other in pairs]
    looks = [bounds(differences[:n], verdict.alpha, verdict.bound) for n in range(1, len(differences) + 1)]
    known = [look for look in looks if np.isfinite(look.low)]
    figure = Figure(figsize=(5.6, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.plot(range(1, len(differences) + 1), differences, "o", color="0.55", markersize=4)
    axes.plot([look.n for look in looks], [look.mean for look in looks], color=optimizer_color("adana"), linewidth=2)
    axes.fill_between([look.n for look in known], [look.low for look in known], [look.high for look in known],
                      color=optimizer_color("adana"), alpha=0.2, linewidth=0)  # fmt: skip
    axes.axhline(0, color="0.3", linewidth=1)
    for edge in (-verdict.difference, verdict.difference):
        axes.axhline(edge, color="0.5", linewidth=0.8, linestyle="--")
    span = 3 * max(*map(abs, differences), verdict.difference)
    axes.set(xlabel="paired seeds", ylabel=f"difference [{verdict.unit}]", ylim=(-span, span))
    axes.grid(True, alpha=0.3, linewidth=0.6)
    return figure


def board(rows: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """The newest verdict of each question that has been asked, by track, the largest improvement first."""
    newest = {(row["track"], row["baseline"], row["contender"]): row for row in rows}
    looks = [(row["track"], row["baseline"], row["contender"]) for row in rows]
    shown = sorted(newest.items(), key=lambda item: (item[0][0], item[1]["effect"] or 0.0))
    return [
        (row["track"], row["contender"], row["baseline"], row["decision"], _signed(row["effect"]),
         f"{_signed(row['low'])} to {_signed(row['high'])}",
         "" if row["saved"] is None else f"{row['saved'][0]:+.0%}", str(row["pairs"]), str(looks.count(key)))
        for key, row in shown
    ]  # fmt: skip


def write_board(rows: Sequence[dict[str, Any]], path: Path) -> None:
    page = Page("Judgements", "The newest verdict on each question of this ledger; a negative effect is a lower loss.")
    page.table(list(BOARD_HEADINGS), board(rows))
    write_atomically(path, page.render())


def _signed(value: float | None) -> str:
    return "not known" if value is None else f"{value:+.4f}"
