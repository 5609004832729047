"""How strong should weight decay be, and how does that depend on the length of the run?

    python bench/decay_law.py PHASE ...     runs and appends to bench/results/decay_law_cpu.jsonl; may be killed
    python bench/decay_law.py --table       prints the tables of what is in that file

Every law of the weight decay gets its own learning rate: factors of 2 on seed 0 until the best lies between two
others; then seeds 1 and 2 at the best. One thread; linear warm-up, cosine to a tenth, gradients clipped at 1. Laws:

    none        no weight decay
    K lr        K times the learning rate, constant: AdamW's usual form
    OMEGA/t     omega / (steps / 10 + t) for logarithmic-time optimizers, omega / steps for AdamW, times the schedule
    K lr, OMEGA/t     the smaller of the two
    sqrt f      OMEGA/t with omega = 2 sqrt(f) (AdamW: 8 sqrt(f)), f the tokens over 20 a parameter
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import nn
from torch.nn import functional as F

from danalab.benchmarks.small_problems import small_problems
from danalab.optim import build_optimizer, get_schedule
from danalab.optim.run_length import warmup_steps

RESULT = Path(__file__).parent / "results" / "decay_law_cpu.jsonl"
GRID = 2.0
SEEDS = (0, 1, 2)
MOST_RATES = 9
START = {"adana": 2e-3, "adamw": 8e-3}
"""First learning rate of a search."""


@dataclass(frozen=True)
class Cell:
    """An optimizer with a law of its weight decay, on one problem."""

    problem: str
    steps: int
    batch: int
    opt: str
    law: str
    warmup: int


def cells(
    problems: Iterable[str], steps: Iterable[int], laws: dict[str, tuple[str, ...]], share: int = 1
) -> list[Cell]:
    """All combinations; `share`: the batch is that many times smaller."""
    return [
        Cell(problem, length, small_problems()[problem].batch // share, opt, law, warmup_steps(length))
        for length in steps
        for problem in problems
        for opt, each in laws.items()
        for law in each
    ]


THREE = ("mlp", "teacher", "transformer")
LAWS = {
    "adana": ("none", "2 lr, 4/t", "1 lr, 4/t", "0.5 lr, 4/t", "4/t"),
    "adamw": ("none", "0.5 lr, 4/t", "2 lr, 4/t"),
}
FEW = {"adana": ("none", "2 lr, 4/t", "1 lr, 4/t"), "adamw": ("none", "0.5 lr, 4/t", "2 lr, 4/t")}
FAMILY = dict.fromkeys(("dana-star-mk4", "dana-mk4", "dana-star"), ("2 lr, 4/t",))
FEWEST = {"adana": ("none", "2 lr, 4/t"), "adamw": ("none", "0.5 lr, 4/t")}


def phases() -> dict[str, list[Cell]]:
    """What is run, by name."""
    return {
        "short": cells(THREE, (60, 150), LAWS),
        "shortest": cells(THREE, (30,), FEW),
        "middle": cells(THREE, (600,), LAWS),
        "bounds": cells(THREE, (30, 60, 150, 600), {"adamw": ("1 lr, 4/t",)}),
        "family": cells(THREE, (60, 150, 600), FAMILY),
        "held-out": cells(("recurrent",), (60, 600), FEWEST),
        "long": cells(THREE, (3000,), FEWEST),
        "batch": cells(THREE, (150, 600), FEWEST, share=4),
        "family-long": cells(THREE, (3000,), FAMILY),
        "longest": cells(("teacher", "mlp"), (10_000,), FEWEST),
    }


def run(cell: Cell, lr: float, seed: int) -> float:
    """Held-out loss at the end; infinite where it is not finite."""
    problem = small_problems()[cell.problem]
    torch.manual_seed(seed)
    model = problem.make()
    optimizer = build_optimizer(cell.opt, model, lr=lr, **({"betas": (0.9, 0.95)} if cell.opt == "adamw" else {}))
    _set_decay(optimizer, cell, lr, sum(p.numel() for p in model.parameters()))
    schedule = get_schedule("cos_inf", cell.steps, cell.warmup, div_factor=10.0, final_div_factor=1.0)
    train, generator = problem.train(cell.batch), torch.Generator().manual_seed(1000 + seed)
    for step in range(cell.steps):
        for group in optimizer.param_groups:
            group["lr"] = lr * schedule(step)
        inputs, targets = train(generator)
        loss = F.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    final = problem.loss(model)
    return final if math.isfinite(final) else math.inf


def _set_decay(optimizer: torch.optim.Optimizer, cell: Cell, lr: float, parameters: int) -> None:
    """The decay of the matrices; the groups of embeddings and vectors say weight_decay 0 and keep it."""
    bound, _, strength = cell.law.rpartition(", ")
    tokens = cell.steps * cell.batch * (32 if cell.problem in ("transformer", "recurrent") else 1)
    root = (tokens / (20 * parameters)) ** 0.5
    log_time = cell.opt != "adamw"
    constant = None
    if strength == "none":
        return
    if strength.endswith(" lr"):
        constant, omega = float(strength[:-3]), None
    else:
        omega = (2 if log_time else 8) * root if strength == "sqrt f" else float(strength[:-2])
        constant = float(bound[:-3]) if bound else None
    # A model's matrices are the first group.
    group = optimizer.param_groups[0]
    if log_time:
        assert omega is not None
        # Unbounded, the first steps of a short run take more than a whole weight.
        group.update(weight_decay=omega / (cell.steps / 10), wd_ts=cell.steps / 10, decay_bound=constant or 0.9 / lr)
    else:
        group["weight_decay"] = min(omega / (lr * cell.steps) if omega else math.inf, constant or 0.9 / lr)


class Results:
    """The file of runs: one JSON object a line."""

    def __init__(self, file: Path):
        self.file = file
        self.losses: dict[tuple[Cell, float, int], float] = {}
        for line in file.read_text().splitlines() if file.exists() else []:
            row = json.loads(line)
            lr, seed, loss = row.pop("lr"), row.pop("seed"), row.pop("loss")
            self.losses[Cell(**row), lr, seed] = math.inf if loss is None else loss

    def loss(self, cell: Cell, lr: float, seed: int) -> float:
        """The loss of a run, which is made if the file does not have it."""
        key = (cell, float(f"{lr:.4g}"), seed)
        if key not in self.losses:
            loss = self.losses[key] = run(*key)
            row = {**asdict(cell), "lr": key[1], "seed": seed, "loss": loss if math.isfinite(loss) else None}
            with self.file.open("a") as out:
                print(json.dumps(row), file=out, flush=True)
        return self.losses[key]

    def rates(self, cell: Cell) -> dict[float, float]:
        """Learning rate -> loss with seed 0."""
        return {lr: loss for (known, lr, seed), loss in self.losses.items() if known == cell and seed == 0}

    def best(self, cell: Cell) -> tuple[float, list[float]] | None:
        """The best learning rate and its losses by seed; None if it lies at an edge or seeds are missing."""
        tried = self.rates(cell)
        if not tried:
            return None
        lr = min(tried, key=lambda rate: tried[rate])
        found = [self.losses.get((cell, lr, seed)) for seed in SEEDS]
        if lr in (min(tried), max(tried)) or None in found:
            return None
        return lr, [loss for loss in found if loss is not None]

    def start(self, cell: Cell) -> float:
        """The best rate without decay of the longest run so far, AdamW's or ADana's; at first `START`."""
        opt = cell.opt if cell.opt in START else "adana"
        like = {c for c, _, _ in self.losses if (c.problem, c.opt, c.law) == (cell.problem, opt, "none")}
        known = [(c.steps, found[0]) for c in like if c.steps <= cell.steps and (found := self.best(c))]
        return max(known)[1] if known else START[opt]

    def tune(self, cell: Cell, start: float) -> float:
        """Run the search and the seeds; returns the best learning rate."""
        exponents = {0: self.loss(cell, start, 0)}
        while len(exponents) < MOST_RATES:
            best = min(exponents, key=lambda k: exponents[k])
            missing = [k for k in (best - 1, best + 1) if k not in exponents]
            if not missing:
                break
            exponents[missing[0]] = self.loss(cell, start * GRID ** missing[0], 0)
        lr = start * GRID ** min(exponents, key=lambda k: exponents[k])
        for seed in SEEDS:
            self.loss(cell, lr, seed)
        return lr


def measure(names: Iterable[str], results: Results) -> None:
    """Run the phases; a search begins at the best rate of the law before it."""
    for name in names:
        starts: dict[Any, float] = {}
        for cell in phases()[name]:
            place = (cell.problem, cell.opt)
            start = starts.get(place) or results.start(cell)
            starts[place] = results.tune(cell, start)
            lr, losses = results.best(cell) or (0.0, [math.nan])
            print(
                f"{cell.problem:12} {cell.steps:5} x {cell.batch:3}  {cell.opt:13} {cell.law:12} lr {lr:.4f}  "
                f"{statistics.fmean(losses):.4f}  {[round(x, 4) for x in losses]}",
                flush=True,
            )


def standard_error(values: list[float]) -> float:
    """Of the mean."""
    return statistics.stdev(values) / len(values) ** 0.5


def table(results: Results) -> str:
    """Every cell: best rate, mean loss, and the paired difference to the best law of the same optimizer."""
    lines = []
    known = list(dict.fromkeys(cell for cell, _, _ in results.losses))
    for place in dict.fromkeys((c.problem, c.steps, c.batch, c.warmup) for c in known):
        own = [c for c in known if (c.problem, c.steps, c.batch, c.warmup) == place and results.best(c)]
        if not own:
            continue
        lines.append("{} {} steps, batch {}, warm-up {}".format(*place))
        for opt in dict.fromkeys(c.opt for c in own):
            found = {c.law: results.best(c) for c in own if c.opt == opt}
            best = min((losses for _, losses in found.values()), key=statistics.fmean)
            for law, (lr, losses) in found.items():
                gaps = [a - b for a, b in zip(losses, best, strict=True)]
                lines.append(
                    f"  {opt:13} {law:12} lr {lr:.4f}  {statistics.fmean(losses):.4f}  "
                    f"{statistics.fmean(gaps):+.4f} +- {standard_error(gaps):.4f}"
                )
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phases", nargs="*", choices=list(phases()), metavar="PHASE", help=", ".join(phases()))
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--output", type=Path, default=RESULT)
    flags = parser.parse_args()
    torch.set_num_threads(1)
    if flags.phases:
        measure(flags.phases, Results(flags.output))
    if flags.table:
        print(table(Results(flags.output)))
