"""The stored ladder, with today's defaults: its tables in docs/ladder.md, notes/ladder.md and README.

danalab ladder bench/ladder_cpu.yaml
danalab ladder bench/ladder_cpu_large.yaml
danalab ladder bench/ladder_cpu_largest.yaml
danalab ladder bench/ladder_cpu_adamw.yaml
danalab ladder bench/ladder_cpu_adamw_small.yaml
python bench/ladder_today.py ladders/ladder_cpu{,_large,_largest,_adamw,_adamw_small}    # packs these into RESULTS
python bench/ladder_today.py                                                             # from the stored rows
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from danalab.experiments.analysis import Analysis, analyse
from danalab.experiments.formats import Table, as_markdown
from danalab.experiments.rows import read_ladder
from danalab.experiments.statistics import Interval
from danalab.experiments.tuning import Tuned
from danalab_bench.pages import cost, fill_parts, refresh

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "ladder_cpu"
PAGES = tuple(ROOT / page for page in ("docs/ladder.md", "notes/ladder.md", "README.md"))
NAMES = {
    "dana-muon": "DanaMuon", "adana": "ADana", "dana-star-mk4": "Dana-Star-MK4", "soap": "SOAP", "muon": "Muon",
    "adamw-decaying-wd": "AdamW, decaying weight decay", "adamw": "AdamW",
}  # fmt: skip


def losses(found: Analysis, sizes: Sequence[int]) -> Table:
    """A line for each optimizer: its loss at each size [nats/token], the mean over the seeds, whose number follows."""
    at = {
        (each.opt, each.params): f"{each.loss:.3f}{f' ({noted})' if (noted := _noted(each)) else ''}"
        for each in found.tuned
    }
    lines = [[name, *(at.get((opt, size), "") for size in sizes)] for opt, name in NAMES.items()]
    counts = {size: sorted({len(each.runs) for each in found.tuned if each.params == size}) for size in sizes}
    epochs = {each.params: each.runs[0]["tokens"] / each.runs[0]["data_tokens"] for each in found.tuned}
    lines.append(["seeds", *(" or ".join(map(str, counts[size])) for size in sizes)])
    lines.append(["epochs of the data", *(f"{epochs[size]:.2g}" for size in sizes)])
    return ["loss [nats/token]", *map(_size, sizes)], lines


def _noted(tuned: Tuned) -> str:
    """What was not tried of an optimizer at a size: rates beyond the best, AdamW's tuned betas."""
    torchs = tuned.opt == "adamw" and tuned.runs[0]["optimizer_settings"]["betas"] == [0.9, 0.999]
    return ", ".join(filter(None, (tuned.bracket, "torch's betas" if torchs else "")))


def savings(found: Analysis, sizes: Sequence[int], what: str = "compute") -> Table:
    """A line for each optimizer: `what` it saves against AdamW at each size, and of all sizes by two fits; AdamW's."""
    lines = []
    for opt in (opt for opt in NAMES if opt != found.baseline):
        at, gain = found.saved[opt], found.gains[opt]
        cells = [_share(at[size].saved, at[size].interval) if size in at else "" for size in sizes]
        lines.append([NAMES[opt], *cells, _share(gain.interpolated, None), _share(gain.mean, gain.interval)])
    noise = [found.saved[found.baseline][size].interval for size in sizes]
    itself = ["" if each is None else f"{100 * each.low:+.0f} to {100 * each.high:+.0f}" for each in noise]
    lines.append(["AdamW against itself", *itself, "", ""])
    return [
        f"{what} saved against AdamW with beta1 0.9",
        *map(_size, sizes),
        "interpolated",
        "by the laws",
    ], lines


def short(compute: Table, tokens: Table) -> Table:
    """A line for each optimizer: what it saves by the laws, and the least and the most at a size."""
    lines = []
    for own, of_tokens in zip(
        compute[1][:-1], tokens[1][:-1], strict=True
    ):  # the last is AdamW against itself
        spans = []
        for line in (own, of_tokens):
            at = sorted(int(cell.partition("%")[0]) for cell in line[1:-2] if cell)
            spans.append(f"{at[0]:+d}% to {at[-1]:+d}%")
        lines.append([own[0], own[-1], spans[0], of_tokens[-1], spans[1]])
    return ["optimizer", "compute saved", "at single sizes", "tokens saved", "at single sizes"], lines


def first_table(found: Analysis, sizes: Sequence[int]) -> Table:
    """A line for each size: what ADana and DanaMuon save, seeds, and how often the text was read."""
    opts, runs = ("adana", "dana-muon"), {(each.opt, each.params): each.runs for each in found.tuned}
    lines = []
    for size in sizes:
        at = [found.saved[opt][size] for opt in opts]
        own = runs["adamw", size]
        epochs = own[0]["tokens"] / own[0]["data_tokens"]
        cells = [f"{100 * each.saved:+.0f}%" for each in at]
        lines.append([_size(size), *cells, str(len(own)), f"{epochs:.1f}"])
    laws = [_share(found.gains[opt].mean, found.gains[opt].interval) for opt in opts]
    lines.append(["fitted laws", *laws, "", ""])
    return ["parameters", *(f"{NAMES[opt]} saves" for opt in opts), "seeds", "epochs"], lines


def _size(params: int) -> str:
    return f"{params / 1e3:.0f} k"


def _share(value: float | None, interval: Interval | None) -> str:
    span = "" if interval is None else f" ({100 * interval.low:+.0f} to {100 * interval.high:+.0f})"
    return "-" if value is None else f"{100 * value:+.0f}%{span}"


@cache
def parts() -> dict[str, str]:
    """The tables of the stored rows, and their cost."""
    rows = read_ladder(RESULTS)
    found, of_model = (
        analyse(rows),
        analyse(rows, convention="model"),
    )  # all runs of a size see the same tokens
    sizes = sorted({each.params for each in found.tuned})
    tables = {
        "saved": savings(found, sizes),
        "tokens": savings(of_model, sizes, "tokens"),
        "short": short(savings(found, sizes), savings(of_model, sizes, "tokens")),
        "first": first_table(found, sizes),
        "losses": losses(found, sizes),
    }
    return {**{name: as_markdown(table) for name, table in tables.items()}, "cost": cost(rows)}


def fill(page: str) -> str:
    """The page with these."""
    return fill_parts(page, "today", parts())


if __name__ == "__main__":
    refresh(__doc__, RESULTS, fill, *PAGES)
