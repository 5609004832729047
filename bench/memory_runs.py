"""The memory of momentum: the runs that the stored predictions are held to, on one CPU core.

    python bench/memory_runs.py --run      # goes on where it stopped; any prefix of the runs is of use
    python bench/memory.py                 # the page from them

A byte GPT of one layer and width 32, 4 x 32 tokens a step: the smallest batch and the greatest lengths that fit, which
is where the theory's effects are largest. Nothing about a path of ages is tuned: constants are a grid by factors of 2,
`follow` is the one that the predictions file names for the map and length, and the buffers and the falling age are
those of the race for 124 M parameters (3,210 steps), scaled by (steps / 3210)^0.43, the predicted exponent. Each arm
has its own learning rate, found for all in the same way with seed 0, which decides nothing else: seeds 1, 2, ... are
compared.
"""

import argparse
import hashlib
import json
import math
import subprocess
import time
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from danalab.models import ModelConfig
from danalab.optim import build_optimizer
from danalab.optim.rate_search import next_rate, rates_to_try
from danalab.optim.schedules import get_schedule, lr_scheduler
from danalab.showcase.problems import library_bytes, next_token

RESULTS = Path(__file__).parent / "results"
PREDICTIONS, ROWS = RESULTS / "memory_predictions.json", RESULTS / "memory_cpu.jsonl"
LENGTHS = (300, 1200, 4800)
"""Those of the predictions [steps]."""
SEEDS = 5
"""That are compared, of each arm; seed 0 chooses rates."""
AGES = (2.0, 4.0, 8.0, 16.0, 32.0)
"""Constant mean ages at the first two lengths [steps]; a best one at an edge has the next tried."""
REFERENCE = "constant 8"
"""The arm by which the rates are centred."""
OPTIMIZERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "muon": ("muon", "sign", {"fresh": 0.05}),
    "adana": ("adana", "none", {}),
    "root": ("adana", "root", {"fresh": 0.05}),
    "dana-muon": ("dana-muon", "sign", {}),
    "muon fresh 0.15": ("muon", "sign", {"fresh": 0.15}),
    "muon fresh 0.3": ("muon", "sign", {"fresh": 0.3}),
}
"""Name -> (optimizer, the theory's map, settings of all arms). ADana's damped term has no map; `root` leaves it out."""
FRESH = tuple(name for name in OPTIMIZERS if "fresh" in name)
"""Larger shares of the new gradient in Muon's update, at 1,200 steps: does a long memory then cost less?"""
FEW = ("own", "follow", REFERENCE)
"""Arms of DanaMuon, whose default is in question."""
BETA2 = {
    "beta2 0.95": {"beta2": 0.95},
    "beta2 by kind": {"by_kind": "embedding:beta2=0.995 head:beta2=0.96 vector:beta2=0.99"},
}
"""Constants that log time (the arm `own`) is to replace, at 1,200 steps."""
MODEL = ModelConfig("gpt", 32, 1, 2, 16, 128, vocab_size=256, seq_len=32, tied_head=False)
BATCH, WINDOWS = 4, 1024
Rows = list[dict[str, Any]]


def read_rows(file: Path = ROWS, track: str | None = None) -> Rows:
    """The rows of this place, or of a track (bench/memory_nanogpt.py)."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [row for row in map(json.loads, lines) if row.get("track") == track]


# ---- the arms ----
@cache
def predicted_follow(kind: str, steps: int) -> str:
    """The path that the predictions name for the map at batch 1 and that length."""
    rows = json.loads(PREDICTIONS.read_text(encoding="utf-8"))["rows"]
    which = next(row["which"] for row in rows if (row["map"], row["batch"], row["steps"]) == (kind, 1, steps))
    _, share, _, power = which.split()
    return f"follow(8, {float(share) * steps:g}, {power.removeprefix('s^')}, 1)"


def settings_of(opt: str, arm: str, steps: int) -> dict[str, Any]:
    """The settings of an arm beside its learning rate."""
    _, kind, common = OPTIMIZERS[opt]
    c = (steps / 3210) ** 0.43
    falling = f"follow(8, {58 * c:.4g}, 1, {26 * c:.4g})"
    arms = {
        "own": {},
        "log time": {"age": "log_time(8)"},
        "follow": {"age": predicted_follow("root" if kind == "none" else kind, steps)},
        "falling": {"age": falling},
        "two": {"age": f"constant({30 * c:.4g})", "buffers": 2, "buffer_ages": (5.7 * c, 49 * c)},
        "eight": {"age": falling, "buffers": 8, "buffer_ages": (5 * c, 200 * c)},
        **BETA2,
    }
    return {**common, **(arms.get(arm) or ({} if arm == "own" else {"age": f"constant({arm.split()[1]})"}))}


OTHERS = ("log time", "follow", "falling", "two", "eight")


def constant(age: float) -> str:
    return f"constant {age:g}"


# ---- running ----
def run(opt: str, arm: str, steps: int, lr: float, seed: int) -> dict[str, Any]:
    """One run as a row."""
    task, held_out = next_token(MODEL, *library_bytes(), BATCH, seed), library_bytes()[1]
    optimizer = build_optimizer(OPTIMIZERS[opt][0], task.model, lr=lr, **settings_of(opt, arm, steps))
    scheduler = lr_scheduler(optimizer, get_schedule("cos", steps, steps // 20, final_div_factor=100))
    began, recent, length = time.process_time(), 0.0, MODEL.seq_len
    for i in range(steps):
        loss = task.loss()
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        recent += float(loss.detach()) if i >= steps - steps // 10 else 0.0
    starts = torch.linspace(0, len(held_out) - length - 1, WINDOWS).long()[:, None] + torch.arange(length + 1)
    with torch.no_grad():
        parts = [
            F.cross_entropy(task.model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
            for x in held_out[starts].split(256)
        ]
    measured = float(torch.stack(parts).mean())
    return {
        "opt": opt, "arm": arm, "steps": steps, "lr": lr, "seed": seed,
        "loss": round(measured, 5) if math.isfinite(measured) else None,
        "train_loss": round(recent / (steps // 10), 5) if math.isfinite(recent) else None,
        "seconds": round(time.process_time() - began, 1),
        "at": datetime.now(timezone.utc).isoformat(timespec="seconds"), **provenance(),
    }  # fmt: skip


@cache
def provenance() -> dict[str, str]:
    """The commit that ran, and the hash of the predictions that it held."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    return {"commit": commit, "predictions": hashlib.sha256(PREDICTIONS.read_bytes()).hexdigest()}


class Runs:
    """The rows of a file, made where they are missing."""

    def __init__(self, file: Path | None):
        self.file = file
        self.known = {_key(row): loss_of(row) for row in read_rows(file or ROWS)}

    def loss(self, opt: str, arm: str, steps: int, lr: float, seed: int) -> float:
        key = (opt, arm, steps, lr, seed)
        if key not in self.known:
            if self.file is None:
                raise KeyError(key)
            row = run(*key)
            with self.file.open("a", encoding="utf-8") as file:
                print(json.dumps(row), file=file)
            print(json.dumps(row), flush=True)
            self.known[key] = loss_of(row)
        return self.known[key]

    def trials(self, opt: str, arm: str, steps: int) -> dict[float, float]:
        """Rate -> loss with seed 0: three by factors of 2, further ones while the best is the outermost."""
        if arm == REFERENCE and opt not in FRESH:
            start = rates_to_try(OPTIMIZERS[opt][0]) if steps == LENGTHS[0] else self.around(opt, steps)
            most = 7
        elif steps == LENGTHS[-1]:
            return {}
        else:
            start, most = self.beside(opt, arm, steps), 4
        found = {_rounded(lr): self.loss(opt, arm, steps, _rounded(lr), 0) for lr in start}
        while len(found) < most and (further := next_rate(found)) is not None:
            found[_rounded(further)] = self.loss(opt, arm, steps, _rounded(further), 0)
        return found

    def around(self, opt: str, steps: int) -> tuple[float, ...]:
        """Rates to begin with, from the shorter length: longer runs want smaller ones."""
        best = _best(self.trials(opt, REFERENCE, LENGTHS[LENGTHS.index(steps) - 1]))
        return best / 2, best

    def beside(self, opt: str, arm: str, steps: int) -> tuple[float, ...]:
        best = _best(self.trials("muon", arm, steps) if opt in FRESH else self.trials(opt, REFERENCE, steps))
        return best / 2, best, 2 * best

    def rate(self, opt: str, arm: str, steps: int) -> float:
        """The arm's rate: the valley of its trials. At the last length all rates fall as the reference's does."""
        found = self.trials(opt, arm, steps)
        if found:
            return valley(found)
        before = LENGTHS[-2]
        if arm not in self.arms(opt, before):  # a constant that the shorter runs did not have
            arm = REFERENCE
        return _rounded(
            self.rate(opt, arm, before) * self.rate(opt, REFERENCE, steps) / self.rate(opt, REFERENCE, before)
        )

    def arms(self, opt: str, steps: int) -> list[str]:
        """Constants, with further ones where the best with seed 0 is the outermost, and the other arms."""
        if opt == "dana-muon":
            return [*FEW, *(BETA2 if steps == LENGTHS[1] else ())]
        if opt in FRESH:
            return [*map(constant, AGES[:-1]), "log time"]
        if steps == LENGTHS[-1]:
            centre = min(self.constants(opt, LENGTHS[-2]), key=lambda age: self.least(opt, age, LENGTHS[-2]))
            ages = [centre * 2.0**i for i in (-1, 0, 1, 2, 3)]
        else:
            ages = self.constants(opt, steps)
        return [*map(constant, ages), *(OTHERS[:2] if opt == "root" else OTHERS)]

    def constants(self, opt: str, steps: int) -> list[float]:
        ages = list(AGES)
        for _ in range(2):
            best = min(ages, key=lambda age: self.least(opt, age, steps))
            if best not in (ages[0], ages[-1]):
                break
            ages = sorted([*ages, best / 2 if best == ages[0] else best * 2])
        return ages

    def least(self, opt: str, age: float, steps: int) -> float:
        return min(self.trials(opt, constant(age), steps).values())

    def seeds(self, opt: str, steps: int, seeds: range) -> None:
        for seed in seeds:
            for arm in self.arms(opt, steps):
                self.loss(opt, arm, steps, self.rate(opt, arm, steps), seed)


def stages(runs: Runs) -> Iterator[str]:
    """All runs, breadth first."""
    short, last = LENGTHS[:2], LENGTHS[-1]
    for opt in ("muon", "adana"):
        for steps in short:
            runs.arms(opt, steps)  # makes the trials of all constants
            for arm in runs.arms(opt, steps):
                runs.trials(opt, arm, steps)
            yield f"rates of {opt} at {steps}"
    for steps in short:
        for opt in ("muon", "adana"):
            runs.seeds(opt, steps, range(1, 3))
            yield f"two seeds of {opt} at {steps}"
    for steps in short:
        runs.seeds("dana-muon", steps, range(1, 3))
        yield f"two seeds of dana-muon at {steps}"
    runs.seeds("muon", last, range(1, 3))
    yield f"two seeds of muon at {last}"
    for seed in range(3, SEEDS + 1):
        for opt in ("dana-muon", "muon", "adana", "root"):
            for steps in LENGTHS:
                runs.seeds(opt, steps, range(1, seed + 1))
                yield f"seeds 1 to {seed} of {opt} at {steps}"
    for opt in FRESH:
        runs.seeds(opt, LENGTHS[1], range(1, SEEDS + 1))
        yield f"{SEEDS} seeds of {opt}"


def valley(found: Mapping[float, float]) -> float:
    """The rate at the bottom of a parabola through the best trial and its neighbours; the best itself at an edge."""
    rates = sorted(found)
    i = rates.index(_best(found))
    if i in (0, len(rates) - 1) or not all(map(math.isfinite, (found[rates[i - 1]], found[rates[i + 1]]))):
        return rates[i]
    below, here, above = (found[rates[j]] for j in (i - 1, i, i + 1))
    return _rounded(rates[i] * 2.0 ** (0.5 * (below - above) / (below - 2 * here + above)))


def loss_of(row: Mapping[str, Any]) -> float:
    return math.inf if row["loss"] is None else row["loss"]


def _best(found: Mapping[float, float]) -> float:
    return min(sorted(found), key=found.__getitem__)


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("opt", "arm", "steps", "lr", "seed"))


def _rounded(lr: float) -> float:
    return float(f"{lr:.3g}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true", required=True)
    parser.parse_args()
    torch.set_num_threads(1)
    for stage in stages(Runs(ROWS)):
        print(stage, flush=True)
