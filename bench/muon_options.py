"""What the options around orthogonalised momentum are worth: one problem, paired seeds, a row for each option.

python bench/muon_options.py --run --text FILE    # FILE: tiny Shakespeare; goes on where it stopped
python bench/muon_options.py                      # leads over DanaMuon without options, from the stored rows

The problem is the GPT of bench/first_line.py, at the best rate of DanaMuon there. Where an option changes the size of a
step, its rate is that of its source: 0.018 for matrices of constant norm.
"""

import argparse
import json
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from torch import nn

import first_line
from danalab.ladder.fit.statistics import student_interval
from danalab.optim import build_optimizer
from danalab.optim.optimizers.matrix.base import model_groups
from danalab.report.formats import as_markdown

RESULTS = Path(__file__).parent / "results" / "muon_options_cpu.jsonl"
PROBLEM, LR, SEEDS = "own-gpt", 0.064, 3
OPTIONS: dict[str, tuple[str, float, dict[str, Any]]] = {
    "no option": ("dana-muon", LR, {}),
    "rows normalised": ("dana-muon", LR, {"normalise": "rows"}),
    "columns normalised": ("dana-muon", LR, {"normalise": "columns"}),
    "norms held": ("dana-muon", LR, {"hold_norm": True, "by_kind": {"matrix": {"lr": 0.018}}}),
    "per head": ("per-head", LR, {}),
    "cautious decay": ("dana-muon", LR, {"cautious_decay": True}),
    "four steps of Polar Express": ("dana-muon", LR, {"ns_method": "polar-express", "ns_steps": 4}),
    "KL-SOAP": ("kl-soap", 3e-3, {}),
    "KL-SOAP, then orthogonalised": ("kl-soap", 0.016, {"orthogonalise": True, "aux_lr": 3e-3}),
}
"""Name -> (optimizer, learning rate, settings)."""


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


def run_all() -> None:
    for seed in range(SEEDS):
        for option, (opt, lr, settings) in OPTIONS.items():
            if not any((row["option"], row["seed"]) == (option, seed) for row in read_rows()):
                row = {"option": option, **first_line.run(PROBLEM, opt, lr, settings, seed)}
                with RESULTS.open("a", encoding="utf-8") as file:
                    print(json.dumps(row), file=file)


def table(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Mean loss of each option, and its lead over none, paired by seed, with its 95% interval."""
    losses: dict[str, dict[int, float]] = {}
    for row in rows:
        losses.setdefault(row["option"], {})[row["seed"]] = first_line.loss_of(row)
    plain, lines = losses["no option"], []
    for option, by_seed in losses.items():
        leads = [plain[seed] - loss for seed, loss in by_seed.items() if seed in plain]
        cell = "-"
        if option != "no option" and len(leads) > 1:
            known = student_interval(fmean(leads), stdev(leads) / len(leads) ** 0.5, len(leads) - 1)
            cell = f"{fmean(leads):+.3f} ({known.low:+.3f} to {known.high:+.3f})"
        lines.append([option, str(len(by_seed)), f"{fmean(by_seed.values()):.3f}", cell])
    return ["option", "seeds", "loss [nats]", "lead, 95% interval [nats]"], lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true", help="make the runs that are not stored")
    parser.add_argument("--text", type=Path, default=first_line.TEXT, help="tiny Shakespeare")
    chosen = parser.parse_args()
    first_line.TEXT = chosen.text
    if chosen.run:
        run_all()
    print(as_markdown(table(read_rows())))
