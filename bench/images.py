"""Twelve optimizers on a small convolutional network: a table of docs/small-models.md.

    python bench/images.py --run     # 132 runs, into bench/results/images_cpu.jsonl; again: goes on
    python bench/images.py           # the page from the stored rows

The problem is `danalab judge --track images`: a network of two convolutions and two linear layers names the
orientation of gratings in noise. Each optimizer tries five rates, then one other value of two settings, with seed 0;
the best of these runs with five seeds, which are weights and data, the same for all.
"""

import argparse
import json
from itertools import chain
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

from danalab.judge.tracks import get_track
from danalab.ladder.fit.statistics import student_interval
from danalab.optim import optimizer_spec
from danalab.report.formats import as_markdown
from danalab.showcase.trials import ProblemRun, search, train
from danalab_bench.pages import fill_parts

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "bench" / "results" / "images_cpu.jsonl", ROOT / "docs" / "small-models.md"
TRIALS, SEEDS = 5, 5
BASELINES = ("adamw", "muon")
TRACK = get_track("images")
DECAY: dict[str, Any] = {"omega": 4.0, "horizon": TRACK.steps}
"""The other value of the decay: none is usual where every image is new."""
Dials = tuple[dict[str, Any], dict[str, Any]]
TWELVE: dict[str, tuple[str, dict[str, Any], Dials]] = {
    "adamw": ("adamw", {}, (DECAY, {"betas": (0.9, 0.95)})),
    "adana": ("adana", {}, (DECAY, {"kappa": 0.75})),
    "adana-delta": ("adana", {}, ({"delta": 4.0}, {"kappa": 0.75})),
    "dana-star-mk4": ("dana-star-mk4", {}, (DECAY, {"kappa": 0.75})),
    "ademamix": ("ademamix", {}, (DECAY, {"alpha": 5.0})),
    "soap": ("soap", {}, (DECAY, {"betas": (0.95, 0.99)})),
    "kl-soap": ("kl-soap", {}, (DECAY, {"betas": (0.95, 0.99)})),
    "muon": ("muon", {}, (DECAY, {"aux_lr_factor": 0.45})),
    "muon-h": ("muon-h", {}, ({"aux_weight_decay": 0.1}, {"aux_lr_factor": 0.45})),
    "d-muon": ("d-muon", {}, (DECAY, {"aux_lr_factor": 0.5})),
    "manau": ("manau", {}, (DECAY, {"kappa": 0.75})),
    "dana-muon": ("dana-muon", {"aux_lr_factor": 1.0}, (DECAY, {"kappa": 0.75})),
}
"""Name -> (optimizer, settings of all its runs, one other value of each of two settings)."""
SHOWN = ("dana-muon", "soap", "d-muon", "muon", "dana-star-mk4", "adana", "ademamix", "adamw")
Rows = list[dict[str, Any]]


def row_of(name: str) -> dict[str, Any]:
    """All runs of one optimizer."""
    opt, usual, dials = TWELVE[name]
    result = search(TRACK, opt, trials=TRIALS, settings=usual)
    spec, lr = optimizer_spec(opt), result.best[0].lr
    tried = [({}, result.best[0]), *((dial, train(TRACK, spec, lr, 0, usual | dial)) for dial in dials)]
    dial, best = min(tried, key=lambda each: each[1].loss)
    runs = [best, *(train(TRACK, spec, lr, seed, usual | dial) for seed in range(1, SEEDS))]
    every: list[ProblemRun] = [*result.trials, *(run for _, run in tried[1:]), *runs[1:]]
    rates = [run.lr for run in result.trials]
    return {
        "optimizer": name, "steps": TRACK.steps, "lr": lr, "at_edge": lr in (rates[0], rates[-1]),
        "dial": {key: value for key, value in dial.items() if key != "horizon"},
        "losses": [run.loss for run in runs],
        "trials": [[run.lr, run.loss] for run in result.trials],
        "dials": [run.loss for _, run in tried[1:]],
        "seconds": sum(run.ms_per_step for run in every) * TRACK.steps / 1e3,
    }  # fmt: skip


def read_rows() -> Rows:
    """The stored rows, the least loss first."""
    rows = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()] if RESULTS.exists() else []
    return sorted(rows, key=lambda row: fmean(row["losses"]))


def table(rows: Rows) -> tuple[list[str], list[list[str]]]:
    """A line for each optimizer of the page: best rate, loss over seeds, lead over the baselines, paired by seed."""
    losses = {row["optimizer"]: row["losses"] for row in rows}
    lines = []
    for row in (row for row in rows if row["optimizer"] in SHOWN):
        rate = f"{row['lr']:.2g}{' (edge)' if row['at_edge'] else ''}"
        loss = f"{fmean(row['losses']):.3f} ± {stdev(row['losses']):.3f}"
        leads = [_lead(losses[baseline], row["losses"]) for baseline in BASELINES]
        lines.append([row["optimizer"], rate, loss, *leads])
    over = [f"lead over {baseline} [nats/image]" for baseline in BASELINES]
    return ["optimizer", "best rate", "loss ± sd over seeds", *over], lines


def _lead(baseline: list[float], losses: list[float]) -> str:
    if baseline == losses:
        return "-"
    leads = [first - second for first, second in zip(baseline, losses, strict=True)]
    known = student_interval(fmean(leads), stdev(leads) / len(leads) ** 0.5, len(leads) - 1)
    return f"{fmean(leads):+.3f} ({known.low:+.3f} to {known.high:+.3f})"


def fill(page: str, rows: Rows) -> str:
    """The page with the table of the rows, and their cost."""
    runs = sum(len(list(chain(row["trials"], row["dials"], row["losses"][1:]))) for row in rows)
    cost = f"{runs} runs, {sum(row['seconds'] for row in rows) / 60:.0f} minutes of one thread by the clock.\n"
    return fill_parts(page, "images", {"table": as_markdown(table(rows)), "cost": cost})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true")
    if parser.parse_args().run:
        torch.set_num_threads(1)
        finished = {row["optimizer"] for row in read_rows()}
        for name in [name for name in TWELVE if name not in finished]:
            with RESULTS.open("a", encoding="utf-8") as file:
                print(json.dumps(row_of(name)), file=file)
            print(name, flush=True)
    stored = read_rows()
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), stored), encoding="utf-8")
    print(as_markdown(table(stored)), end="")
