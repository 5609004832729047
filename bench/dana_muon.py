"""Log-time momentum before orthogonalisation, in nine forms over horizons: a table of docs/dana-muon.md.

danalab ladder bench/dana_muon.yaml
python bench/dana_muon.py ladders/dana_muon      # packs its rows into bench/results/dana_muon_cpu, too
python bench/dana_muon.py                        # from the stored rows
"""

from pathlib import Path
from typing import Any

from danalab.ladder.fit.tuning import horizon_of, tune
from danalab.report.formats import as_markdown
from danalab.sweep.rows import is_usable
from danalab.ladder.paired import PairedTest, paired_runs, paired_tests
from danalab_bench.pages import cost, fill_parts, refresh, shown_lead

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "dana_muon_cpu"
PAGES = (ROOT / "docs" / "dana-muon.md", ROOT / "notes" / "dana-muon.md")
BASELINES = ("muon", "d-muon")
Rows = list[dict[str, Any]]


def leads(rows: Rows, baseline: str) -> dict[tuple[str, float], PairedTest]:
    """(optimizer, horizon) -> the baseline's loss minus its own [nats/token], paired by seed."""
    tuned = tune([row for row in rows if is_usable(row)], "6nd")
    tests = paired_tests(paired_runs(tuned, baseline))
    return {(test.second, test.horizon): test for test in tests if test.first == baseline}


def table(rows: Rows) -> tuple[list[str], list[list[str]]]:
    """A line for each optimizer, the least loss at the longest horizon first."""
    tuned = tune([row for row in rows if is_usable(row)], "6nd")
    horizons = sorted({horizon_of(each.runs[0]) for each in tuned})
    cells = {(each.opt, horizon_of(each.runs[0])): each for each in tuned}
    tests = {baseline: leads(rows, baseline) for baseline in BASELINES}
    opts = sorted({each.opt for each in tuned}, key=lambda opt: cells[opt, horizons[-1]].loss)
    lines = []
    for opt in opts:
        each = [cells[opt, f] for f in horizons]
        losses = [f"{own.loss:.3f} at {own.lr:.2g}{' (edge)' * (own.bracket == 'edge')}" for own in each]
        lines.append([opt, *losses, *(shown_lead(tests[baseline].get((opt, horizons[-1]))) for baseline in BASELINES)])
    over = [f"lead over {baseline} at f = {horizons[-1]:g} [nats/token]" for baseline in BASELINES]
    return ["optimizer", *(f"loss at f = {f:g}" for f in horizons), *over], lines


def fill(page: str, rows: Rows) -> str:
    """The page with the table of the rows, and its cost."""
    return fill_parts(page, "dana-muon", {"table": as_markdown(table(rows)), "cost": cost(rows)})


if __name__ == "__main__":
    refresh(__doc__, RESULTS, fill, *PAGES)
