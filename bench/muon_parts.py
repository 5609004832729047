"""What of DanaMuon is ahead, the momentum of matrices or the rule for the rest: a table of docs/optimizers.md.

danalab ladder bench/muon_forms.yaml
python bench/muon_parts.py ladders/muon_forms    # packs its rows into bench/results/muon_forms_cpu, too
python bench/muon_parts.py                       # from the stored rows and those of bench/results/ladder_cpu
"""

from pathlib import Path
from typing import Any

from dana_muon import PAGE, leads
from danalab.ladder.fit.tuning import is_usable, tune
from danalab.ladder.rows import read_ladder
from danalab.report.formats import Table, as_markdown
from danalab_bench.pages import cost, fill_parts, refresh, shown_lead

RESULTS = Path(__file__).parent / "results" / "muon_forms_cpu"
PARTS = {
    "dana-muon": ("log time", "Dana-Star-MK4"),
    "cooldown": ("log time, cooled down", "Dana-Star-MK4"),
    "falling-decay": ("log time, falling decay", "Dana-Star-MK4"),
    "constant-decay": ("log time", "Dana-Star-MK4, constant decay"),
    "size-by-shape": ("log time, size by shape", "Dana-Star-MK4, constant decay"),
    "rest-by-adana": ("log time", "ADana, constant decay"),
    "log-time-d-muon": ("log time", "AdamW"),
    "manau": ("constant", "Dana-Star-MK4"),
    "d-muon": ("constant", "AdamW"),
}
BASELINES = ("d-muon", "manau", "adamw")
Rows = list[dict[str, Any]]


def with_ladder(rows: Rows) -> Rows:
    """The rows, and the ladder's of the same size for DanaMuon and AdamW."""
    sizes = {row["params"] for row in rows}
    ladder = read_ladder(RESULTS.with_name("ladder_cpu"))
    return [*rows, *(row for row in ladder if row["params"] in sizes and row["opt"] in ("dana-muon", "adamw"))]


def table(rows: Rows) -> Table:
    """A line for each optimizer: its two parts, its loss, and its lead over three others."""
    tuned = {each.opt: each for each in tune([row for row in rows if is_usable(row)], "6nd")}
    over = {baseline: {opt: test for (opt, _), test in leads(rows, baseline).items()} for baseline in BASELINES}
    lines = []
    for opt, parts in PARTS.items():
        loss = f"{tuned[opt].loss:.3f} at {tuned[opt].lr:.2g}"
        lines.append([opt, *parts, loss, *(shown_lead(own.get(opt)) for own in over.values())])
    header = ["optimizer", "momentum of matrices", "the rest", "loss"]
    return [*header, *(f"lead over {baseline} [nats/token]" for baseline in BASELINES)], lines


def fill(page: str, rows: Rows) -> str:
    """The page with the table of the rows, and their cost."""
    return fill_parts(page, "muon-parts", {"table": as_markdown(table(with_ladder(rows))), "cost": cost(rows)})


if __name__ == "__main__":
    refresh(__doc__, RESULTS, fill, PAGE)
