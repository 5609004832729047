"""The ladder with today's defaults: its table in docs/ladder.md.

danalab ladder bench/ladder_cpu.yaml
python bench/ladder_today.py ladders/ladder_cpu      # packs its rows into bench/results/ladder_cpu, too
python bench/ladder_today.py                         # from the stored rows
"""

from pathlib import Path
from typing import Any

from danalab.ladder.analysis import Analysis, analyse
from danalab.report.formats import as_markdown
from danalab_bench.pages import cost, fill_parts, refresh

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "bench" / "results" / "ladder_cpu", ROOT / "docs" / "ladder.md"
Rows = list[dict[str, Any]]


def table(found: Analysis) -> tuple[list[str], list[list[str]]]:
    """A line for each optimizer: loss, and compute saved against the baseline with its interval, at each size."""
    sizes = sorted({each.params for each in found.tuned})
    at = {(each.opt, each.params): each for each in found.tuned}
    opts = sorted(found.opts, key=lambda opt: at[opt, sizes[-1]].loss)
    lines = [[opt, *(_cell(found, at[opt, size].loss, opt, size) for size in sizes)] for opt in opts]
    return ["optimizer", *(f"{size / 1e3:.0f} k" for size in sizes)], lines


def _cell(found: Analysis, loss: float, opt: str, size: int) -> str:
    saved = found.saved.get(opt, {}).get(size)
    if saved is None:
        return f"{loss:.3f}"
    known = saved.interval
    span = "" if known is None else f" ({100 * known.low:+.0f} to {100 * known.high:+.0f})"
    return f"{loss:.3f}, {100 * saved.saved:+.0f}%{span}"


def fill(page: str, rows: Rows) -> str:
    """The page with the table of the rows, and its cost."""
    parts = {"table": as_markdown(table(analyse(rows))), "cost": cost(rows)}
    return fill_parts(page, "today", parts)


if __name__ == "__main__":
    refresh(__doc__, RESULTS, PAGE, fill)
