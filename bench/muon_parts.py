"""What of DanaMuon helps, the momentum of matrices or the rule for other parameters: a table of docs/dana-muon.md.

danalab ladder bench/muon_forms.yaml
python bench/muon_parts.py ladders/muon_forms    # packs its rows into bench/results/muon_forms_cpu, too
python bench/muon_parts.py                       # from the stored rows and those of bench/results/ladder_cpu
"""

from pathlib import Path
from typing import Any

from dana_muon import PAGES, leads
from danalab.ladder.fit.tuning import tune
from danalab.ladder.rows import read_ladder
from danalab.report.formats import Table, as_markdown
from danalab.sweep.rows import is_usable
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
SHORT = ("dana-muon", "log-time-d-muon", "manau", "d-muon")
"""The four combinations of two momenta and two rules for the other parameters."""
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
        loss = f"{tuned[opt].loss:.3f} at {tuned[opt].lr:.2g}{' (edge)' * (tuned[opt].bracket == 'edge')}"
        lines.append([opt, *parts, loss, *(shown_lead(own.get(opt)) for own in over.values())])
    header = ["optimizer", "momentum of matrices", "other parameters", "loss"]
    return [*header, *(f"lead over {baseline} [nats/token]" for baseline in BASELINES)], lines


def fill(page: str, rows: Rows) -> str:
    """The page with the table of the rows, and their cost."""
    header, lines = table(with_ladder(rows))
    short = header[:-1], [line[:-1] for line in lines if line[0] in SHORT]
    parts = {"table": as_markdown((header, lines)), "short": as_markdown(short), "cost": cost(rows)}
    return fill_parts(page, "muon-parts", parts)


if __name__ == "__main__":
    refresh(__doc__, RESULTS, fill, *PAGES)
