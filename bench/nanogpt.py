"""A small GPT on characters: a table of docs/small-models.md.

danalab ladder bench/nanogpt.yaml --horizons 0.3662      # 600 steps
python bench/nanogpt.py ladders/nanogpt                  # packs its rows into bench/results/nanogpt_cpu, too
python bench/nanogpt.py                                  # from the stored rows

`--part init`, `kappa`, `wide`, `long` or `polar` packs a ladder of bench/nanogpt_PART.yaml into
bench/results/nanogpt_PART_cpu.
"""

import argparse
from pathlib import Path
from typing import Any

from danalab.ladder.budget import Dial, budget_of
from danalab.ladder.fit.tuning import Tuned, horizon_of, is_usable, tune
from danalab.ladder.paired import PairedTest, paired_runs, paired_tests
from danalab.ladder.rows import pack, read_ladder
from danalab.report.formats import as_markdown
from danalab_bench.pages import cost, fill_parts, shown_lead

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "bench" / "results" / "nanogpt_cpu", ROOT / "docs" / "small-models.md"
BASELINES = {
    "table": ("adamw", "muon", "d-muon"),
    "init": ("adamw", "muon"),
    "kappa": ("muon", "d-muon"),
    "wide": ("adamw", "muon-float32", "d-muon"),
    "long": ("adamw", "muon", "d-muon", "manau"),
    "polar": ("muon",),
}
"""Ladder -> the optimizers that leads are over; "table" is that of all optimizers."""
SHOWN = {
    "manau-log": "DanaMuon (as `manau-log`)", "manau": "Manau", "muon": "Muon", "soap": "SOAP", "d-muon": "D-Muon",
    "adana": "ADana", "dana-star-mk4": "Dana-Star-MK4", "ademamix": "AdEMAMix",
}  # fmt: skip
AT = {"table": "600 steps, width 64", "wide": "600 steps, width 128", "long": "4,800 steps, width 64"}
"""What the page shows: optimizers, and ladders."""
Rows = list[dict[str, Any]]


def tuned_runs(rows: Rows) -> list[Tuned]:
    """Each optimizer at its best settings, the least loss first."""
    return sorted(tune([row for row in rows if is_usable(row)], "6nd"), key=lambda each: each.loss)


def leads(rows: Rows, baseline: str) -> dict[str, PairedTest]:
    """Optimizer -> the baseline's loss minus its own [nats/token], paired by seed."""
    tests = paired_tests(paired_runs(tuned_runs(rows), baseline))
    return {test.second: test for test in tests if test.first == baseline}


def table(rows: Rows, part: str = "table") -> tuple[list[str], list[list[str]]]:
    """A line for each optimizer: best rate and dials, settings tried, loss over seeds, lead over the baselines."""
    tests = {baseline: leads(rows, baseline) for baseline in BASELINES[part]}
    lines = []
    for each in tuned_runs(rows):
        spread = "" if each.spread is None else f" ± {each.spread:.3f}"
        line = [each.opt, f"{each.lr:.2g}{' (edge)' if each.at_edge else ''}"]
        if part == "table":
            budget = budget_of(each, horizon_of(each.runs[0]), rows)
            line.append(", ".join(map(_words, budget.dials[1:])) or "-")
        line += [str(each.trials), f"{each.loss:.3f}{spread}"]
        lines.append([*line, *(shown_lead(test.get(each.opt)) for test in tests.values())])
    others = ["best other settings"] if part == "table" else []
    over = [f"lead over {baseline} [nats/token]" for baseline in tests]
    return ["optimizer", "best rate", *others, "tried", "val loss ± sd over seeds", *over], lines


def _words(dial: Dial) -> str:
    """A setting and its best value of those tried."""
    best = "/".join(map(str, dial.best)) if isinstance(dial.best, list) else f"{dial.best:g}"
    return f"{dial.name} {best}"


def results(part: str) -> Path:
    """Folder of the stored rows."""
    return RESULTS if part == "table" else RESULTS.with_name(f"nanogpt_{part}_cpu")


def leads_table(stored: dict[str, Rows]) -> tuple[list[str], list[list[str]]]:
    """A line for each optimizer: its lead over AdamW in each ladder, with the 95% interval."""
    found = {part: leads(stored[part], "adamw") for part in AT}
    for tests in found.values():
        tests["muon"] = tests.get("muon") or tests["muon-float32"]
    lines = [[name, *(shown_lead(tests.get(opt)) for tests in found.values())] for opt, name in SHOWN.items()]
    return ["lead over AdamW [nats/token]", *AT.values()], lines


def fill(page: str) -> str:
    """The page with the table of the stored rows, and their cost."""
    stored = {part: read_ladder(results(part)) for part in BASELINES}
    spent = cost([row for rows in stored.values() for row in rows])
    return fill_parts(page, "nanogpt", {"leads": as_markdown(leads_table(stored)), "cost": spent})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ladders", type=Path, nargs="*")
    parser.add_argument("--part", choices=BASELINES, default="table", help="which ladder they are")
    chosen = parser.parse_args()
    if chosen.ladders:
        pack([row for ladder in chosen.ladders for row in read_ladder(ladder)], results(chosen.part))
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(as_markdown(table(read_ladder(results(chosen.part)), chosen.part)), end="")
