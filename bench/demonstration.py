"""A preregistered comparison: AdamW, ADana, DanaMuon and Muon on texts and an architecture that touched no default.

    python bench/demonstration.py --run --wikitext FOLDER    # goes on where it stopped; one thread
    python bench/demonstration.py                            # notes/demonstration.md, from the stored rows

The plan is a section of that page. Its hash covers the section and every trial's settings, each row has it, and rows
of another plan are refused. FOLDER holds WikiText-2: train.txt, valid.txt and test.txt.
"""

import argparse
import hashlib
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import sympy
import torch
from torch import Tensor, nn
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from danalab.data import train_bpe
from danalab.experiments.formats import as_markdown
from danalab.experiments.paired import paired_t
from danalab.optim import build_optimizer
from danalab_bench.orthogonal import BETAS, Settings, kinds
from danalab_bench.pages import fill_parts
from recipes import Arm, Dial, Task, drawn, loss, next_token

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "notes" / "demonstration.md"]
RESULTS = ROOT / "bench" / "results" / "demonstration_cpu.jsonl"
WIKITEXT = [Path("wikitext-2")]
TRIALS, STAGES = 24, (6, 12, 24)
TUNING_SEEDS, TEST_SEEDS = (0, 1), tuple(range(11, 19))
BATCH, LENGTH = 16, 128


# ---- texts and models ----
def wikitext() -> tuple[str, str, str]:
    training, first, second = (
        (WIKITEXT[0] / f"{split}.txt").read_text(encoding="utf-8") for split in ("train", "valid", "test")
    )
    return training, first, second


def sympy_source() -> tuple[str, str, str]:
    """Every tenth file is held out; they belong to the two halves by turns."""
    root = Path(str(sympy.__file__)).parent
    files = [
        file for file in root.rglob("*.py") if not {"tests", "benchmarks"} & set(file.relative_to(root).parts)
    ]
    texts = [file.read_text(encoding="utf-8") for file in sorted(files)]
    training = "".join(text for i, text in enumerate(texts) if i % 10)
    return training, "".join(texts[::20]), "".join(texts[10::20])


TEXTS: dict[str, Callable[[], tuple[str, str, str]]] = {"wikitext": wikitext, "sympy": sympy_source}


@cache
def tokens(text: str) -> tuple[Tensor, Tensor]:
    """Ids of 512 byte pairs to train on, and of both halves to measure on, equally long."""
    training, *held_out = TEXTS[text]()
    tokenizer = train_bpe(training.splitlines(keepends=True), 512)
    ids, *halves = (torch.tensor(tokenizer.encode(part)) for part in (training, *held_out))
    length = min(map(len, halves))
    return ids, torch.cat([half[:length] for half in halves])


class NeoX(nn.Module):
    """GPT-NeoX (Pythia) of the transformers library with its own initial weights: ids -> logits."""

    def __init__(self, width: int):
        super().__init__()
        self.model = GPTNeoXForCausalLM(
            GPTNeoXConfig(
                vocab_size=512,
                hidden_size=width,
                num_hidden_layers=2,
                num_attention_heads=width // 16,
                intermediate_size=4 * width,
                max_position_embeddings=LENGTH,
            )
        )

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(tokens, use_cache=False).logits


@dataclass(frozen=True)
class Problem:
    title: str
    text: str
    width: int
    steps: int

    def make(self, seed: int) -> Task:
        torch.manual_seed(seed)
        return next_token(NeoX(self.width), *tokens(self.text), seed, BATCH, LENGTH)


PROBLEMS = {
    "wikitext-106k": Problem("WikiText-2, 106 k parameters", "wikitext", 48, 1033),
    "sympy-106k": Problem("SymPy's source, 106 k parameters", "sympy", 48, 1033),
    "wikitext-166k": Problem("WikiText-2, 166 k parameters", "wikitext", 64, 1618),
    "sympy-166k": Problem("SymPy's source, 166 k parameters", "sympy", 64, 1618),
}


# ---- contenders ----
def muon(model: nn.Module, lr: float, momentum: float, **ratios: float) -> list[torch.optim.Optimizer]:
    """torch's Muon at AdamW's size of update, and AdamW for the rest with nanochat's betas for each kind."""
    by_kind = kinds(model)
    matrices = by_kind.pop("matrix")
    rest = [
        {
            "params": ps,
            "lr": lr * ratios["embedding" if kind == "embedding" else "rest"],
            "betas": BETAS[kind],
        }
        for kind, ps in by_kind.items()
        if ps
    ]
    return [
        torch.optim.Muon(
            matrices, lr=lr, momentum=momentum, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(rest, weight_decay=0.0, fused=True),
    ]


def optimizers(name: str, model: nn.Module, steps: int, settings: Settings) -> list[torch.optim.Optimizer]:
    own = {dial: value for dial, value in settings.items() if dial not in SCHEDULE}
    if name == "muon":
        return muon(model, **own)
    if name == "adamw":
        return [build_optimizer(name, model, betas=(own.pop("beta1"), own.pop("beta2")), **own)]
    return [build_optimizer(name, model, horizon=steps, **own)]


SCHEDULE: dict[str, Dial] = {"final": (0.0, 0.1), "warmup": (0.02, 0.1)}
SHORT: Dial = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
LOG_TIME: dict[str, Dial] = {
    "delta": ("log", 2.0, 32.0),
    "kappa": (0.7, 0.75, 0.8, 0.85, 0.9, 1.0),
    "omega": ("log", 1.0, 16.0),
}
DIALS: dict[str, dict[str, Dial]] = {
    "adamw": {
        "lr": ("log", 0.002, 0.032),
        "beta1": SHORT,
        "beta2": (0.95, 0.98, 0.99, 0.995),
        "weight_decay": ("log", 0.05, 0.8),
    },
    "adana": {"lr": ("log", 0.0007, 0.0112), **LOG_TIME},
    "dana-muon": {"lr": ("log", 0.016, 0.256), **LOG_TIME},
    "muon": {
        "lr": ("log", 0.004, 0.064),
        "momentum": SHORT,
        "embedding": ("log", 0.25, 16.0),
        "rest": ("log", 0.03125, 2.0),
    },
}
NAMES = {"adamw": "AdamW", "adana": "ADana", "dana-muon": "DanaMuon", "muon": "Muon + AdamW"}
COMPARISONS = [("adana", "adamw"), ("dana-muon", "adamw"), ("muon", "adamw"), ("dana-muon", "muon")]


def trials(problem: str, contender: str) -> list[Settings]:
    draw = random.Random(f"{problem} {contender}")
    arm = Arm(contender, {}, {**DIALS[contender], **SCHEDULE})
    return [drawn(arm, draw) for _ in range(TRIALS)]


def plan_hash(page: str) -> str:
    """Of the plan's section and the settings of all trials."""
    section = page.split("## Plan\n")[1].split("\n## ")[0].strip()
    settings = [trials(problem, contender) for problem in PROBLEMS for contender in DIALS]
    return hashlib.sha256(f"{section}\n{json.dumps(settings, sort_keys=True)}".encode()).hexdigest()


# ---- runs ----
def run(problem: str, contender: str, settings: Settings, seed: int, steps: int = 0) -> dict[str, Any]:
    """Losses on both halves. steps: of a shorter run."""
    steps, task = steps or PROBLEMS[problem].steps, PROBLEMS[problem].make(seed)
    built = optimizers(contender, task.model, steps, settings)
    groups = [group for each in built for group in each.param_groups]
    peaks = [group["lr"] for group in groups]
    began = time.process_time()
    for i in range(steps):
        cosine = settings["final"] + (1 - settings["final"]) * (1 + math.cos(math.pi * i / steps)) / 2
        for group, peak in zip(groups, peaks, strict=True):
            group["lr"] = peak * min((i + 1) / (settings["warmup"] * steps), cosine)
        task.loss().backward()
        nn.utils.clip_grad_norm_(task.model.parameters(), 1.0)
        for each in built:
            each.step()
            each.zero_grad()
    tuning, test = (round(value, 5) if math.isfinite(value) else None for value in task.measure())
    return {"tuning": tuning, "test": test, "seconds": round(time.process_time() - began, 1)}


Rows = dict[tuple[str, str, int, int], dict[str, Any]]
"""(problem, contender, trial, seed) -> row."""


def read_rows(plan: str, file: Path) -> Rows:
    """The stored rows; exits where one has another plan's hash."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    rows = [json.loads(line) for line in lines]
    if any(row["plan"] != plan for row in rows):
        sys.exit(f"{file.name} has rows of another plan than {plan[:12]}, which is that of {PAGES[0].name}")
    return {(row["problem"], row["contender"], row["trial"], row["seed"]): row for row in rows}


def make(rows: Rows, plan: str, problem: str, contender: str, trial: int, seed: int) -> None:
    if (key := (problem, contender, trial, seed)) not in rows:
        row = {"plan": plan, "problem": problem, "contender": contender, "trial": trial, "seed": seed}
        rows[key] = row | run(problem, contender, trials(problem, contender)[trial], seed)
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(rows[key]) + "\n")
        print(rows[key], flush=True)


def run_all(rows: Rows, plan: str, problem: str) -> None:
    for trial in range(TRIALS):
        for contender in DIALS:
            for seed in TUNING_SEEDS:
                make(rows, plan, problem, contender, trial, seed)
    for contender in DIALS:
        for n in STAGES:
            for seed in TEST_SEEDS:
                make(rows, plan, problem, contender, winner(rows, problem, contender, range(n)), seed)


# ---- the page ----
def mean_of(rows: Rows, problem: str, contender: str, trial: int, half: str) -> float:
    return statistics.fmean(loss(rows[problem, contender, trial, seed], half) for seed in TUNING_SEEDS)


def winner(rows: Rows, problem: str, contender: str, of: Any) -> int:
    return min(of, key=lambda trial: mean_of(rows, problem, contender, trial, "tuning"))


def test_losses(rows: Rows, problem: str, contender: str, n: int) -> list[float]:
    trial = winner(rows, problem, contender, range(n))
    return [loss(rows[problem, contender, trial, seed], "test") for seed in TEST_SEEDS]


def redrawn(rows: Rows, problem: str, contender: str, n: int) -> list[float]:
    """Losses on the report's half of the winners of n trials that are drawn again, 1,000 times."""
    draw = random.Random(f"{problem} {contender} {n}")
    chosen = [winner(rows, problem, contender, draw.choices(range(TRIALS), k=n)) for _ in range(1000)]
    means = {trial: mean_of(rows, problem, contender, trial, "test") for trial in set(chosen)}
    return [means[trial] for trial in chosen]


def lines_of(rows: Rows, problem: str) -> list[list[str]]:
    """A line for each comparison and number of trials; none before the problem's last run."""
    lines = []
    for (own, other), n in ((pair, n) for pair in COMPARISONS for n in STAGES):
        try:
            pairs = list(zip(*(test_losses(rows, problem, each, n) for each in (other, own)), strict=True))
            again = zip(*(redrawn(rows, problem, each, n) for each in (other, own)), strict=True)
        except KeyError:
            return []
        lead, interval, _ = paired_t(pairs)
        leads = [theirs - mine for theirs, mine in again]
        low, *_, high = statistics.quantiles(leads, n=40)
        lines.append([
            PROBLEMS[problem].title,
            f"{NAMES[own]} over {NAMES[other]}",
            str(n),
            f"{statistics.fmean(mine for _, mine in pairs):.4f}",
            f"{lead:+.3f} ({interval.low:+.3f} to {interval.high:+.3f})" if interval else "-",
            f"{statistics.fmean(leads):+.3f} ({low:+.3f} to {high:+.3f})",
        ])  # fmt: skip
    return lines


def fill(page: str, file: Path = RESULTS) -> str:
    """The page with the plan's hash and the table of the stored rows."""
    plan = plan_hash(page)
    rows = read_rows(plan, file)
    head = ["problem", "lead of", "trials", "loss [nats]", "test seeds, 95%", "trials drawn again, 95%"]
    table = (head, [line for problem in PROBLEMS for line in lines_of(rows, problem)])
    hours = sum(row["seconds"] for row in rows.values()) / 3600
    known = f"Plan `{plan}`; {len(rows)} runs, {hours:.1f} hours of one core.\n\n"
    return fill_parts(
        page, "demonstration", {"outcome": known + (as_markdown(table) + "\n" if table[1] else "")}
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--wikitext", type=Path, default=WIKITEXT[0])
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    options = parser.parse_args()
    WIKITEXT[0] = options.wikitext
    torch.set_num_threads(1)
    text = PAGES[0].read_text(encoding="utf-8")
    plan = plan_hash(text)
    registered = next(line for line in text.splitlines() if line.startswith("Registered"))
    print(f"plan {plan}\n{registered}", flush=True)
    rows = read_rows(plan, RESULTS)
    for problem in options.problems if options.run else ():
        run_all(rows, plan, problem)
    PAGES[0].write_text(fill(text), encoding="utf-8")
