"""What the options around orthogonalised momentum are worth: one problem, paired seeds, a row for each option.

python bench/muon_options.py --run --text FILE    # FILE: tiny Shakespeare; goes on where it stopped
python bench/muon_options.py                      # the table of notes/dana-muon.md, from the stored rows

The problem is the GPT of bench/first_line.py. Each option runs at three learning rates a factor of 2 apart and at more
of them until the best has neighbours on both sides; all three seeds run at each. Rows are compared at their best rates.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from torch import nn

import first_line
from danalab.ladder.fit.statistics import student_interval
from danalab.optim import build_optimizer
from danalab.optim.optimizers.matrix.base import model_groups
from danalab.optim.rate_search import next_rate
from danalab.report.formats import as_markdown
from danalab_bench.pages import fill_parts

RESULTS = Path(__file__).parent / "results" / "muon_options_cpu.jsonl"
PAGE = Path(__file__).parents[1] / "notes" / "dana-muon.md"
PROBLEM, SEEDS, LARGEST = "own-gpt", 3, 4
"""LARGEST: powers of 2 beyond the first three rates at which the search for neighbours ends."""

Arguments = tuple[str, float, dict[str, Any]]
"""Optimizer, learning rate, settings."""


def of_dana_muon(**settings: Any) -> tuple[float, Callable[[float], Arguments]]:
    return 0.064, lambda lr: ("dana-muon", lr, settings)


OPTIONS: dict[str, tuple[float, Callable[[float], Arguments]]] = {
    "no option": of_dana_muon(),
    "rows normalised": of_dana_muon(normalise="rows"),
    "rows by a second moment": of_dana_muon(normalise="normuon"),
    "u/w floor 2": of_dana_muon(uw_floor=2.0),
    "u/w floor 4": (0.032, lambda lr: ("dana-muon", lr, {"uw_floor": 4.0})),
    "columns normalised": of_dana_muon(normalise="columns"),
    "norms held": (0.018, lambda lr: ("dana-muon", 0.064, {"hold_norm": True, "by_kind": {"matrix": {"lr": lr}}})),
    "per head": (0.064, lambda lr: ("per-head", lr, {})),
    "cautious decay": of_dana_muon(cautious_decay=True),
    "four steps of Polar Express": of_dana_muon(ns_method="polar-express", ns_steps=4),
    "KL-SOAP": (3e-3, lambda lr: ("kl-soap", lr, {})),
    "KL-SOAP, then orthogonalised": (0.016, lambda lr: ("kl-soap", lr, {"orthogonalise": True, "aux_lr": 3e-3})),
}
"""Name -> (the rate in the middle, what a run at a rate is). The rate of "norms held" is that of the matrices."""


def per_head(model: nn.Module, lr: float, steps: int, **settings: Any) -> list[Any]:
    """DanaMuon with the 3 x 4 heads of queries, keys and values as matrices of their own."""
    groups = []
    for group in model_groups(model):
        attention = [(name, p) for name, p in group["params"] if name.endswith("qkv.weight")]
        rest = [(name, p) for name, p in group["params"] if not name.endswith("qkv.weight")]
        groups += [{**group, "params": attention, "heads": 12}] if attention else []
        groups += [{**group, "params": rest}] if rest else []
    return [build_optimizer("dana-muon", groups, lr=lr, **{"omega": 4.0, "horizon": steps, **settings})]


first_line.BUILD |= {"per-head": per_head, "kl-soap": first_line.ours("kl-soap")}


def read_rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def losses_of(option: str, lr: float, rows: list[dict[str, Any]]) -> dict[int, float]:
    """Seed -> loss of an option at a rate, of the rows that there are."""
    opt, rate, settings = OPTIONS[option][1](lr)
    same = (row for row in rows if row["option"] == option and (row["lr"], row["settings"]) == (rate, settings))
    return {row["seed"]: first_line.loss_of(row) for row in same if row["opt"] == opt}


def rates_of(option: str, rows: list[dict[str, Any]]) -> dict[float, dict[int, float]]:
    """Rate -> seed -> loss, of the first three rates and of those beyond that have rows."""
    middle = OPTIONS[option][0]
    rates = [middle * 2.0**k for k in range(-1 - LARGEST, 2 + LARGEST)]
    known = {lr: losses_of(option, lr, rows) for lr in rates}
    return {lr: losses for lr, losses in known.items() if losses or 0.5 <= lr / middle <= 2}


def mean(losses: dict[int, float]) -> float:
    return fmean(losses.values()) if losses else float("inf")


def run_all() -> None:
    for option, (middle, arguments) in OPTIONS.items():
        lr: float | None = middle
        while lr is not None and 2.0 ** (-1 - LARGEST) <= lr / middle <= 2.0 ** (1 + LARGEST):
            for seed in range(SEEDS):
                if seed not in losses_of(option, lr, read_rows()):
                    row = {"option": option, **first_line.run(PROBLEM, *arguments(lr), seed)}
                    with RESULTS.open("a", encoding="utf-8") as file:
                        print(json.dumps(row), file=file, flush=True)
            tried = rates_of(option, read_rows())
            missing = next((each for each, losses in tried.items() if len(losses) < SEEDS), None)
            lr = missing or next_rate({each: mean(losses) for each, losses in tried.items()})


def table(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Mean loss of each option at its best rate, and its lead over none, paired by seed, with its 95% interval."""
    best = {}
    for option in OPTIONS:
        tried = {lr: losses for lr, losses in rates_of(option, rows).items() if len(losses) == SEEDS}
        if tried:
            lr = min(tried, key=lambda each: mean(tried[each]))
            best[option] = lr, tried[lr], " (edge)" * (lr in (min(tried), max(tried)))
    lines = []
    for option, (lr, losses, edge) in best.items():
        leads = [best["no option"][1][seed] - loss for seed, loss in losses.items()]
        known = student_interval(fmean(leads), stdev(leads) / len(leads) ** 0.5, len(leads) - 1)
        cell = "-" if option == "no option" else f"{fmean(leads):+.3f} ({known.low:+.3f} to {known.high:+.3f})"
        lines.append([option, f"{lr:.2g}{edge}", f"{mean(losses):.3f}", cell])
    return ["option", "best rate", "loss [nats]", "lead, 95% interval [nats]"], lines


def fill(page: str, rows: list[dict[str, Any]]) -> str:
    """The page with the table of the rows."""
    return fill_parts(page, "muon-options", {"table": as_markdown(table(rows))})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true", help="make the runs that are not stored")
    parser.add_argument("--text", type=Path, default=first_line.TEXT, help="tiny Shakespeare")
    chosen = parser.parse_args()
    first_line.TEXT = chosen.text
    if chosen.run:
        run_all()
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), read_rows()), encoding="utf-8")
