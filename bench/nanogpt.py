"""A small GPT on bytes, nanoGPT's Shakespeare, AdamW with long constant averages: tables of pages.

danalab ladder bench/nanogpt.yaml && python bench/nanogpt.py ladders/nanogpt                  # 600 steps at two widths
danalab ladder bench/nanogpt_long.yaml && python bench/nanogpt.py ladders/nanogpt_long --long     # 4,800 steps
python bench/nanogpt.py                                                                       # from the stored rows
"""

import argparse
from pathlib import Path
from typing import Any

from danalab.experiments.formats import Table, as_markdown
from danalab.experiments.paired import PairedTest, paired_tests
from danalab.experiments.rows import pack, read_ladder
from danalab.experiments.tuning import Tuned, tune
from danalab_bench.pages import cost, fill_parts, joined, shown_lead

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
PAGES = ROOT / "docs" / "small-models.md", ROOT / "notes" / "ladder.md"
BASELINES = ("adamw", "muon", "d-muon")
"""The optimizers that leads are over."""
SHOWN = {
    "dana-muon": "DanaMuon", "d-muon": "D-Muon", "muon": "Muon", "soap": "SOAP", "adana": "ADana",
}  # fmt: skip
AT = {
    "nanogpt": "600 steps, width 64", "nanogpt_wide": "600 steps, width 128", "nanogpt_long": "4,800 steps, width 64",
    "nanogpt_shakespeare": "Shakespeare, 2,000 steps",
}  # fmt: skip
"""What the page shows: optimizers, and stored ladders; the first two are one ladder's widths."""
CONTROLS = {"adamw_long": "ladder_cpu", "nanogpt_adamw_long": "nanogpt"}
"""Ladder of AdamW with long constant averages -> the one with AdamW and ADana as they are."""
Rows = list[dict[str, Any]]


def stored(part: str) -> Rows:
    """The stored rows of a ladder."""
    return read_ladder(folder(part))


def folder(part: str) -> Path:
    """Where they are."""
    return RESULTS / f"{part.removesuffix('_cpu')}_cpu"


def tuned_runs(rows: Rows) -> list[Tuned]:
    """Each optimizer at its best settings, the least loss first."""
    return sorted(tune(rows), key=lambda each: each.loss)


def leads(rows: Rows, baseline: str) -> dict[str, PairedTest]:
    """Optimizer -> the baseline's loss minus its own [nats/token], paired by seed."""
    tests = paired_tests(tuned_runs(rows), baseline)
    return {test.second: test for test in tests if test.first == baseline}


def table(rows: Rows) -> Table:
    """A line for each optimizer: best rate and dials, settings tried, loss over seeds, lead over the baselines."""
    tests = {baseline: leads(rows, baseline) for baseline in BASELINES}
    lines = []
    for each in tuned_runs(rows):
        others = (
            ", ".join(_words(name, best) for name, (_, best) in each.dials.items() if name != "lr") or "-"
        )
        line = [
            each.opt,
            f"{each.lr:.2g}{' (edge)' if each.bracket == 'edge' else ''}",
            others,
            str(len(each.trials)),
        ]
        lines.append([*line, _loss(each), *(shown_lead(test.get(each.opt)) for test in tests.values())])
    over = [f"lead over {baseline} [nats/token]" for baseline in tests]
    return [
        "optimizer",
        "best rate",
        "best other settings",
        "tried",
        "val loss ± sd over seeds",
        *over,
    ], lines


def _loss(tuned: Tuned) -> str:
    """Loss over seeds, with its standard deviation."""
    noted = f" ({tuned.bracket})" if tuned.bracket == "edge" else ""
    return f"{tuned.loss:.3f}{'' if tuned.spread is None else f' ± {tuned.spread:.3f}'}{noted}"


def _words(name: str, best: Any) -> str:
    """A setting and its best value of those tried."""
    return f"{name} {'/'.join(map(str, best)) if isinstance(best, list) else f'{best:g}'}"


def leads_table() -> Table:
    """A line for each optimizer: its lead over AdamW in each ladder, with the 95% interval; AdamW's losses."""
    rows = {part: stored(part) for part in AT}
    columns = {part: leads(own, "adamw") for part, own in rows.items()}
    # DanaMuon with one rate for all parameters ran as Manau with logarithmic-time momentum
    columns["nanogpt_long"]["dana-muon"] = columns["nanogpt_long"]["manau-log"]
    edges = {
        part: {each.opt for each in tuned_runs(own) if each.bracket == "edge"} for part, own in rows.items()
    }
    lines = []
    for opt, name in SHOWN.items():
        cells = [
            shown_lead(column.get(opt)) + " (edge)" * (opt in edges[part]) for part, column in columns.items()
        ]
        lines.append([name, *cells])
    lines.append(["AdamW's loss", *(_loss(_named(own, "adamw")) for own in rows.values())])
    return ["lead over AdamW [nats/token]", *AT.values()], lines


def _named(rows: Rows, opt: str) -> Tuned:
    (found,) = (each for each in tuned_runs(rows) if each.opt == opt)
    return found


def control_rows(control: str) -> Rows:
    """AdamW with long constant averages, AdamW and ADana, on one size."""
    long = stored(control)
    size = long[0]["params"]
    others = [row for row in stored(CONTROLS[control]) if row["params"] == size]
    return [*long, *(row for row in others if row["opt"] in ("adamw", "adana"))]


def controls_table() -> Table:
    """A line for each pair of AdamW's betas: its loss on both problems, and how far ADana is ahead of it."""
    cells: dict[str, list[str]] = {}
    for column, control in enumerate(CONTROLS):
        rows = control_rows(control)
        for each in tuned_runs(rows):
            if each.opt != "adana":
                own = cells.setdefault(each.opt, ["-"] * 2 * len(CONTROLS))
                own[2 * column : 2 * column + 2] = [
                    _loss(each),
                    shown_lead(leads(rows, each.opt).get("adana")),
                ]
    lines = [[opt.removeprefix("adamw-").replace("-", ", "), *own] for opt, own in sorted(cells.items())]
    lines[0][0] = "tuned as elsewhere"
    heads = [
        f"{title}: {what}" for title in ("Enoki, 105 k", "GPT, width 64") for what in ("loss", "ADana's lead")
    ]
    return ["AdamW's betas", *heads], lines


def published() -> str:
    """A sentence on AdamW at nanoGPT's own settings for Shakespeare."""
    named = {f"adamw-d128-L4-H4-lrx0.25-s{seed}" for seed in range(3)}
    losses = sorted(row["final_loss"] for row in stored("nanogpt_shakespeare") if row["name"] in named)
    span = f"{losses[0]:.3f} to {losses[-1]:.3f} (three seeds)"
    return f"AdamW with nanoGPT's own settings for Shakespeare ends at {span}. nanoGPT publishes 1.88.\n"


def fill(page: str) -> str:
    """The page with the tables of the stored rows, and their cost."""
    spent = cost([row for part in (*AT, *CONTROLS) for row in stored(part)])
    tables = {"leads": as_markdown(leads_table()), "controls": as_markdown(controls_table())}
    return fill_parts(page, "nanogpt", {**tables, "published": published(), "cost": spent})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ladder", type=Path, nargs="?")
    parser.add_argument("--long", action="store_true", help="it is that of bench/nanogpt_long.yaml")
    chosen = parser.parse_args()
    if chosen.ladder:
        rows = joined([read_ladder(chosen.ladder)])
        for part, width in (
            (("nanogpt_long", 64),) if chosen.long else (("nanogpt", 64), ("nanogpt_wide", 128))
        ):
            pack([row for row in rows if row["settings"]["d_model"] == width], folder(part))
    for page in PAGES:
        page.write_text(fill(page.read_text(encoding="utf-8")), encoding="utf-8")
    for part in AT:
        print(f"{AT[part]}\n{as_markdown(table(stored(part)))}")
