"""Trials of optimizers on the small problems: a learning rate for each law of the weight decay, then three seeds.

One thread; cosine to a tenth of the peak rate, gradients clipped at 1; AdamW has betas (0.9, 0.95), or beta2 as given.

A search tries factors of 2 on seed 0 until the best rate lies between two others. Laws of the weight decay:

    none              no weight decay
    4/t               ADana: omega / (steps / 10 + t), omega = 4; AdamW: omega / steps; both times the schedule
    K lr, 4/t         the same, at most K times the learning rate
"""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from danalab.benchmarks.decay.small_problems import small_problems
from danalab.optim import build_optimizer, get_schedule

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
    settings: str = ""
    """Further settings of the optimizer, as in "beta2=0.99"."""


def run(cell: Cell, lr: float, seed: int) -> float:
    """Held-out loss at the end; infinite where it is not finite."""
    problem = small_problems()[cell.problem]
    torch.manual_seed(seed)
    model = problem.make()
    settings: dict[str, Any] = {key: float(value) for key, value in [word.split("=") for word in cell.settings.split()]}
    if cell.opt == "adamw":
        settings = {"betas": (0.9, settings.get("beta2", 0.95))}
    optimizer = build_optimizer(cell.opt, model, lr=lr, **settings)
    _set_decay(optimizer, cell, lr)
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


def _set_decay(optimizer: torch.optim.Optimizer, cell: Cell, lr: float) -> None:
    """The decay of the matrices; the groups of embeddings and vectors say weight_decay 0 and keep it."""
    if cell.law == "none":
        return
    # The schedules without a bound take more than a whole weight in the first steps of short runs.
    bound = float(cell.law.partition(" lr")[0]) if "lr" in cell.law else 0.9 / lr
    group = optimizer.param_groups[0]  # the matrices of a model
    if cell.opt == "adamw":
        group["weight_decay"] = min(4 / (lr * cell.steps), bound)
    else:
        group.update(weight_decay=40 / cell.steps, wd_ts=cell.steps / 10, decay_bound=bound)


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
