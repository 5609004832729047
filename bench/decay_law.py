"""How strong should weight decay be, and how does that depend on the length of the run?

    python bench/decay_law.py PHASE ...     runs and appends to bench/results/decay_law_cpu.jsonl; may be killed
    python bench/decay_law.py --docs        writes the tables of that file into docs/

The trials are in `danalab.benchmarks.decay_trials`.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from danalab.benchmarks.decay_trials import Cell, Results
from danalab.benchmarks.small_problems import small_problems
from danalab.optim.run_length import warmup_steps

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "bench" / "results" / "decay_law_cpu.jsonl"
PAGES = [ROOT / "docs" / name for name in ("bring-your-own-trainer.md", "decay-law.md", "findings.md")]


def cells(
    problems: Iterable[str], steps: Iterable[int], laws: dict[str, tuple[str, ...]], share: int = 1
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
FAMILY = dict.fromkeys(("dana-star-mk4", "dana-mk4", "dana-star"), ("2 lr, 4/t",))
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


def measure(names: Iterable[str], results: Results) -> None:
    """Run the phases; a search begins at the best rate of the law before it."""
    for name in names:
        starts: dict[Any, float] = {}
        for cell in phases()[name]:
            place = (cell.problem, cell.opt)
            start = starts.get(place) or results.start(cell)
            starts[place] = results.tune(cell, start)
            lr, losses = results.best(cell) or (0.0, [math.nan])
            print(
                f"{cell.problem:12} {cell.steps:5} x {cell.batch:3}  {cell.opt:13} {cell.law:12} lr {lr:.4f}  "
                f"{statistics.fmean(losses):.4f}  {[round(x, 4) for x in losses]}",
                flush=True,
            )


def rows_of(results: Results, opt: str, default: bool = False) -> dict[tuple[str, int, int], dict[str, list[float]]]:
    """(problem, steps, batch) -> law and settings -> losses by seed at the best rate, with the usual warm-up."""
    found: dict[tuple[str, int, int], dict[str, list[float]]] = {}
    for cell in dict.fromkeys(cell for cell, _, _ in results.losses):
        best = results.best(cell)
        if not best or cell.opt != opt or cell.warmup != warmup_steps(cell.steps):
            continue
        name = f"{cell.law} {cell.settings}".rstrip()
        if not default or name == DEFAULT:
            found.setdefault((cell.problem, cell.steps, cell.batch), {})[name] = best[1]
    return found


def difference(a: list[float], b: list[float]) -> str:
    """Mean and standard error of a - b, paired by seed."""
    gaps = [x - y for x, y in zip(a, b, strict=True)]
    return f"{statistics.fmean(gaps):+.3f} ± {statistics.stdev(gaps) / len(gaps) ** 0.5:.3f}"


def advice_table(results: Results) -> str:
    """The family with its default decay against AdamW at its best decay; both at their best rates."""
    adamw = rows_of(results, "adamw")
    family = {name: rows_of(results, opt, default=True) for name, opt in SHOWN.items()}
    lines = [["problem", "steps", "AdamW", *SHOWN, "ADana - AdamW"]]
    for place in sorted(family["ADana"], key=lambda place: (ORDER.index(place[0]), place[1])):
        problem, steps, batch = place
        if batch != small_problems()[problem].batch or place not in adamw:
            continue
        best = min(adamw[place].values(), key=statistics.fmean)
        own = [next(iter(found.get(place, {}).values()), None) for found in family.values()]
        shown = [f"{statistics.fmean(losses):.3f}" if losses else "-" for losses in own]
        assert own[0] is not None
        lines.append([problem, f"{steps:,}", f"{statistics.fmean(best):.3f}", *shown, difference(own[0], best)])
    return as_markdown(lines)


def laws_table(results: Results, opt: str, laws: dict[str, str]) -> str:
    """How much worse each law is than the best of the row."""
    lines = [["problem", "steps", "batch", "best", *laws.values()]]
    rows = rows_of(results, opt)
    for place in sorted(rows, key=lambda place: (ORDER.index(place[0]), place[1], -place[2])):
        found = {law: losses for law, losses in rows[place].items() if law in laws}
        best = min(found.values(), key=statistics.fmean)
        shown = [difference(found[law], best) if law in found and found[law] is not best else
                 ("0" if law in found else "-") for law in laws]  # fmt: skip
        lines.append([place[0], f"{place[1]:,}", str(place[2]), f"{statistics.fmean(best):.3f}", *shown])
    return as_markdown(lines)


def findings_table(results: Results) -> str:
    """The difference that each setting makes to ADana with its defaults, each at its own best learning rate."""
    base = Cell("", 0, 0, "adana", DEFAULT, 0)
    changes = {
        **{settings.replace("=", " "): replace(base, settings=settings) for settings in FINDINGS},
        "tau (Dana-Star)": replace(base, opt="dana-star"),
        "clip (Dana-MK4)": replace(base, opt="dana-mk4"),
        "both (Dana-Star-MK4)": replace(base, opt="dana-star-mk4"),
        "no weight decay": replace(base, law="none"),
        "weight decay unbounded": replace(base, law="4/t"),
    }
    places = [("transformer", 150), ("mlp", 150), ("mlp", 600), ("teacher", 150), ("teacher", 600)]
    lines = [["ADana, but", *(f"{problem}, {steps} steps" for problem, steps in places)]]
    for name, change in changes.items():
        line = [name]
        for problem, steps in places:
            at = {"problem": problem, "steps": steps, "batch": small_problems()[problem].batch}
            cell, usual = (replace(each, **at, warmup=warmup_steps(steps)) for each in (change, base))
            found, known = results.best(cell), results.best(usual)
            line.append(difference(found[1], known[1]) if found and known else "-")
        lines.append(line)
    return as_markdown(lines)


def as_markdown(lines: list[list[str]]) -> str:
    """A table whose first line is its head."""
    return "\n".join("| " + " | ".join(line) + " |" for line in [lines[0], ["---"] * len(lines[0]), *lines[1:]])


def tables(results: Results) -> dict[str, str]:
    """The tables of the docs by the name of their marker."""
    laws = {"none": "none", "0.5 lr, 4/t": "at most 0.5 lr", "1 lr, 4/t": "at most lr", "2 lr, 4/t": "at most 2 lr"}
    return {
        "advice": advice_table(results),
        "laws of adana": laws_table(results, "adana", {**laws, "4/t": "unbounded"}),
        "laws of adamw": laws_table(results, "adamw", laws),
        "findings": findings_table(results),
    }


def fill(page: str, results: Results) -> str:
    """The text of a page with the tables between its markers."""
    for name, table in tables(results).items():
        start, end = f"<!-- decay law: {name} -->\n", "<!-- end -->"
        if start in page:
            head, rest = page.split(start)
            page = head + start + table + "\n" + rest[rest.index(end) :]
    return page


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phases", nargs="*", metavar="PHASE", help=", ".join(phases()))
    parser.add_argument("--docs", action="store_true", help="write the tables into the pages of docs/")
    parser.add_argument("--output", type=Path, default=RESULT)
    flags = parser.parse_args()
    torch.set_num_threads(1)
    if unknown := set(flags.phases) - phases().keys():
        parser.error(f"unknown phase {', '.join(unknown)}; known: {', '.join(phases())}")
    if flags.phases:
        measure(flags.phases, Results(flags.output))
    if flags.docs:
        for page in PAGES:
            page.write_text(fill(page.read_text(encoding="utf-8"), Results(flags.output)), encoding="utf-8")
