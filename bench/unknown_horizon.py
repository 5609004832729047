"""Optimizers that do not know the length of the run, against those that do, at three lengths with one setting.

    python bench/unknown_horizon.py --run       # 25 minutes of one core; goes on where it stopped
    python bench/unknown_horizon.py             # the table from bench/results/unknown_horizon_cpu.jsonl

The problem is the judge's track `stdlib`: Enoki of width 64 on bytes, 150, 600 and 2,400 steps (f = 1, 4, 16). One that
does not know the length makes one run at a constant rate and is measured at all three; the others have a run for each
length, with a cosine to a tenth of the peak and the horizon's weight decay. Each has three rates, and more where the
best is an edge; the best with seed 0 at 600 steps is its setting everywhere. A seed sets weights and data for all.
"""

import argparse
import json
import math
import time
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

from danalab.judge.tracks import get_track
from danalab.ladder.fit.statistics import student_interval
from danalab.optim import build_optimizer, get_schedule
from danalab.optim.rate_search import next_rate
from danalab.optim.run_length import warmup_steps
from danalab.report.formats import as_markdown
from danalab.showcase.trials import descend

RESULTS = Path(__file__).parent / "results" / "unknown_horizon_cpu.jsonl"
LENGTHS = (150, 600, 2400)
CHOSEN_AT = 600
SEEDS = (0, 1, 2)
CONTENDERS: dict[str, tuple[str, bool, dict[str, Any], tuple[float, ...]]] = {
    "dana-muon": ("dana-muon", True, {"omega": 4.0}, (0.016, 0.032, 0.064)),
    "adana": ("adana", True, {"omega": 4.0}, (1.4e-3, 2.8e-3, 5.6e-3)),
    "adamw": ("adamw", True, {"omega": 4.0, "betas": (0.9, 0.99)}, (4e-3, 8e-3, 1.6e-2)),
    "sf-normuon": ("sf-normuon", False, {"weight_decay": 0.1}, (0.016, 0.032, 0.064)),
    "adana, no horizon": ("adana", False, {"omega": 4.0}, (7e-4, 1.4e-3, 2.8e-3)),
    "sf-adamw": ("sf-adamw", False, {"weight_decay": 0.1, "betas": (0.9, 0.99)}, (4e-3, 8e-3, 1.6e-2)),
}
"""Name -> (optimizer, whether it knows the length, settings, rates to try)."""
Rows = list[dict[str, Any]]


def run(name: str, lr: float, seed: int, steps: int) -> dict[str, Any]:
    """One run as a row; `losses`: steps -> validation loss [nats/byte]."""
    opt, knows, settings, _ = CONTENDERS[name]
    task = get_track("stdlib").make(seed)
    if knows:
        settings = {**settings, "horizon": steps}
        schedule = get_schedule("cos_inf", steps, warmup_steps(steps))
    else:
        schedule = get_schedule("wsd", steps, warmup_steps(CHOSEN_AT), fract_decay=0.0)
    optimizer = build_optimizer(opt, task.model, lr=lr, **settings)
    marks = (steps,) if knows else [each for each in LENGTHS if each <= steps]
    began = time.process_time()
    _, at, losses, _ = descend(task, optimizer, schedule, steps, 1.0, marks)
    seconds = round(time.process_time() - began)
    measured = {step: round(loss, 5) for step, loss in zip(at, losses, strict=True) if step and math.isfinite(loss)}
    return {"name": name, "lr": lr, "seed": seed, "steps": steps, "losses": measured, "seconds": seconds}


def read_rows() -> Rows:
    return [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()] if RESULTS.exists() else []


def loss(name: str, lr: float, seed: int, steps: int, *, make: bool = False) -> float:
    """Loss after `steps`, from a stored row or a run made now; infinite: it diverged, NaN: it was not made."""
    longer = not CONTENDERS[name][1]  # the same run, measured on the way
    for row in read_rows():
        same = (row["name"], row["lr"], row["seed"]) == (name, lr, seed)
        if same and (row["steps"] == steps or (longer and row["steps"] > steps)):
            return row["losses"].get(str(steps), math.inf)
    if not make:
        return math.nan
    row = run(name, lr, seed, steps)
    with RESULTS.open("a", encoding="utf-8") as file:
        print(json.dumps(row), file=file)
    print(json.dumps(row), flush=True)
    return row["losses"].get(steps, math.inf)


def best_rate(name: str, *, make: bool = False) -> float:
    """The rate with the least loss after 600 steps with seed 0."""
    tried = {lr: loss(name, lr, 0, CHOSEN_AT, make=make) for lr in CONTENDERS[name][3]}
    for _ in range(2):
        further = next_rate(tried)
        if further is None or math.isnan(further_loss := loss(name, further, 0, CHOSEN_AT, make=make)):
            break
        tried[further] = further_loss
    return min(tried, key=tried.__getitem__)


def measure() -> None:
    torch.set_num_threads(1)
    rates = {name: best_rate(name, make=True) for name in CONTENDERS}
    for seed in SEEDS:
        for name, lr in rates.items():
            for steps in LENGTHS if CONTENDERS[name][1] else LENGTHS[-1:]:
                loss(name, lr, seed, steps, make=True)


def losses(name: str, steps: int) -> list[float]:
    """Losses at the setting, by seed; of seeds that were run."""
    lr = best_rate(name)
    return [each for seed in SEEDS if not math.isnan(each := loss(name, lr, seed, steps))]


def lag(name: str, steps: int, behind: str = "dana-muon") -> tuple[float, float, float]:
    """Mean of loss minus that of one that knows the length, paired by seed, with its 95% interval [nats/byte]."""
    pairs = [own - other for own, other in zip(losses(name, steps), losses(behind, steps), strict=False)]
    known = student_interval(fmean(pairs), stdev(pairs) / len(pairs) ** 0.5, len(pairs) - 1)
    return fmean(pairs), known.low, known.high


def finished() -> bool:
    """Whether all runs are stored."""
    return all(len(losses(name, steps)) == len(SEEDS) for name in CONTENDERS for steps in LENGTHS)


def best_without() -> str:
    """The one that does not know the length with the least loss, averaged over the lengths."""
    free = [name for name, (_, knows, *_) in CONTENDERS.items() if not knows]
    return min(free, key=lambda name: fmean(fmean(losses(name, steps)) for steps in LENGTHS))


def table() -> tuple[list[str], list[list[str]]]:
    head = ["optimizer", "knows the length", "rate", *(f"{steps:,} steps [nats/byte]" for steps in LENGTHS), "seeds"]
    lines = []
    for name, (_, knows, *_) in CONTENDERS.items():
        means = [f"{fmean(losses(name, steps)):.3f}" for steps in LENGTHS]
        count = min(len(losses(name, steps)) for steps in LENGTHS)
        lines.append([f"`{name}`", "yes" if knows else "no", f"{best_rate(name):g}", *means, f"{count}"])
    return head, lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true")
    if parser.parse_args().run:
        measure()
    print(as_markdown(table()), end="")
