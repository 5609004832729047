"""Gains against the length of a run: tables of docs/horizon.md and notes/horizon.md, and their figures.

danalab ladder bench/horizon_cpu.yaml                             # two hours of one core
danalab ladder pack ladders/horizon_cpu --out bench/results/horizon_cpu
python bench/horizon.py                                           # from the stored rows
"""

import shutil
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

from danalab.experiments.analysis import Analysis, analyse
from danalab.experiments.drawing import THEMES, save_figure
from danalab.experiments.figures import horizon_loss_figure, multiplier_figure
from danalab.experiments.formats import as_markdown
from danalab.experiments.horizon import analyse_horizons, budget_table, exponent_table, multiplier_table
from danalab.experiments.paired import pair_table
from danalab.experiments.report import remarks, tuned_table
from danalab.experiments.rows import read_ladder
from danalab.experiments.tuning import Redraw, Trials
from danalab_bench.pages import cost, fill_parts

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "horizon_cpu"
PAGES = [ROOT / "docs" / "horizon.md", ROOT / "notes" / "horizon.md"]
FIGURES = {"horizon_cpu": multiplier_figure, "horizon_loss_cpu": horizon_loss_figure}


@cache
def data() -> Analysis:
    found = analyse(
        read_ladder(RESULTS), n_bootstrap=0
    )  # laws of the loss, whose draws take a minute, are not shown
    redraws = {opt: Redraw([Trials.of(each) for each in found.at(opt)]) for opt in found.opts}
    return replace(found, horizon=analyse_horizons(found.tuned, redraws, found.baseline))


def fill(page: str) -> str:
    """The page with the tables of the stored rows."""
    found = data()
    assert found.horizon is not None
    tables = {
        "exponents": exponent_table(found.horizon),
        "multipliers": multiplier_table(found.horizon),
        "pairs": pair_table(found.horizon.tests),
        "budgets": budget_table(found.tuned),
    }
    parts = {f"horizon-{name}": as_markdown(table) for name, table in tables.items()}
    parts["horizon-sentences"] = "\n".join([*remarks(found), *found.horizon.notes]) + "\n"
    parts["tuned"] = as_markdown(tuned_table(found))
    parts["cost"] = cost(found.rows)
    return fill_parts(page, "horizon", parts)


if __name__ == "__main__":
    for file in PAGES:
        file.write_text(fill(file.read_text(encoding="utf-8")), encoding="utf-8")
    for name, draw in FIGURES.items():
        with tempfile.TemporaryDirectory() as drawn:
            save_figure(lambda draw=draw: draw(data()), Path(drawn) / name)
            for ending in THEMES:
                shutil.copy(Path(drawn) / f"{name}{ending}.png", ROOT / "docs" / "figures")
