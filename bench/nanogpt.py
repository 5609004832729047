"""Twelve optimizers on a small GPT on characters: the table of docs/bring-your-own-trainer.md.

danalab ladder bench/nanogpt.yaml --horizons 0.3662      # 600 steps
python bench/nanogpt.py ladders/nanogpt                  # packs its rows into bench/results/nanogpt_cpu, too
python bench/nanogpt.py                                  # from the stored rows

Four of them with the package's own initial weights: bench/nanogpt_init.yaml, and --init for the packing.
"""

import argparse
from pathlib import Path
from typing import Any

from danalab.ladder.fit.tuning import Tuned, is_usable, tune
from danalab.ladder.horizon.analysis import PairedTest, horizon_of, paired_runs, paired_tests
from danalab.ladder.horizon.budget import Dial, budget_of
from danalab.ladder.rows import pack, read_ladder
from danalab.report.formats import as_markdown
from danalab_bench.pages import cost, fill_parts, shown_lead

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "bench" / "results" / "nanogpt_cpu", ROOT / "docs" / "bring-your-own-trainer.md"
INIT_RESULTS = RESULTS.with_name("nanogpt_init_cpu")
BASELINES = ("adamw", "muon", "d-muon")
Rows = list[dict[str, Any]]


def tuned_runs(rows: Rows) -> list[Tuned]:
    """Each optimizer at its best settings, the least loss first."""
    return sorted(tune([row for row in rows if is_usable(row)], "6nd"), key=lambda each: each.loss)


def leads(rows: Rows, baseline: str) -> dict[str, PairedTest]:
    """Optimizer -> the baseline's loss minus its own [nats/token], paired by seed."""
    tests = paired_tests(paired_runs(tuned_runs(rows), baseline))
    return {test.second: test for test in tests if test.first == baseline}


def table(rows: Rows) -> tuple[list[str], list[list[str]]]:
    """A line for each optimizer: best rate and dials, settings tried, loss over seeds, lead over the baselines."""
    tests = {baseline: leads(rows, baseline) for baseline in BASELINES}
    lines = []
    for each in tuned_runs(rows):
        budget = budget_of(each, horizon_of(each.runs[0]), rows)
        spread = "" if each.spread is None else f" ± {each.spread:.3f}"
        line = [each.opt, f"{each.lr:.2g}{' (edge)' if each.at_edge else ''}"]
        line += [", ".join(map(_words, budget.dials[1:])) or "-", str(each.trials), f"{each.loss:.3f}{spread}"]
        lines.append([*line, *(shown_lead(tests[baseline].get(each.opt)) for baseline in BASELINES)])
    over = [f"lead over {baseline} [nats/token]" for baseline in BASELINES]
    return ["optimizer", "best rate", "best other settings", "tried", "val loss ± sd over seeds", *over], lines


def init_table(rows: Rows) -> tuple[list[str], list[list[str]]]:
    """The same without other settings, and with leads over AdamW and Muon."""
    headings, lines = table(rows)
    kept = [i for i, name in enumerate(headings) if "other settings" not in name and "d-muon" not in name]
    return [headings[i] for i in kept], [[line[i] for i in kept] for line in lines]


def _words(dial: Dial) -> str:
    """A setting and its best value of those tried."""
    best = "/".join(map(str, dial.best)) if isinstance(dial.best, list) else f"{dial.best:g}"
    return f"{dial.name} {best}"


def fill(page: str, rows: Rows, init_rows: Rows) -> str:
    """The page with the tables of the rows, and their cost."""
    parts = {"table": as_markdown(table(rows)), "init": as_markdown(init_table(init_rows))}
    return fill_parts(page, "nanogpt", {**parts, "cost": cost([*rows, *init_rows])})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ladder", type=Path, nargs="?")
    parser.add_argument("--init", action="store_true", help="LADDER is of bench/nanogpt_init.yaml")
    chosen = parser.parse_args()
    if chosen.ladder is not None:
        pack(read_ladder(chosen.ladder), INIT_RESULTS if chosen.init else RESULTS)
    stored, init = read_ladder(RESULTS), read_ladder(INIT_RESULTS)
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), stored, init), encoding="utf-8")
    print(as_markdown(table(stored)), as_markdown(init_table(init)), sep="\n", end="")
