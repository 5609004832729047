"""Two questions about what an optimizer's lead is made of, answered with every dial of every contender searched alike.

    python bench/recipes.py --run [--text FILE]     # goes on where it stopped; FILE: tiny Shakespeare
    python bench/recipes.py                         # notes/recipes.md, from the stored rows

1. *The baseline*: AdamW (rate, beta1, beta2, decay, final rate, warmup), ADana (rate, delta, kappa, omega, final rate,
   warmup) and Muon, each with the same number of trials (`tune`); their best settings carried to larger models by the
   law of their rates (`carried`); and AdamW turned into ADana part by part.
2. *The recipe*: DanaMuon, and the parts of nanochat's optimizer added to it one at a time; and the other way round.

All optimizers are written apart from the library, eagerly, in two classes, so that an arm differs from the next by
one switch. A trial
is the mean over two seeds on one half of the held-out text, the best few get three more; reports are of other seeds on
the other half.
"""

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from danalab.colors import optimizer_color
from danalab.experiments.drawing import canvas, soft
from danalab.experiments.formats import as_markdown
from danalab.experiments.paired import paired_t
from danalab_bench.orthogonal import NANOCHAT, Settings, recipe
from danalab_bench.pages import fill_parts, store_figure
from danalab_bench.texts import TEXT, SmallGPT, held_out_loss, library_tokens, shakespeare, training_loss

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "notes" / "recipes.md"]
RESULTS = ROOT / "bench" / "results" / "recipes_cpu.jsonl"

TUNING_SEEDS, REPORT_SEEDS = (0, 1), (11, 12, 13, 14, 15)
FINAL_SEEDS, FINALISTS = (2, 3, 4), 5
"""The least of 36 means over two seeds is luck as much as merit: the best settings are run with more seeds."""


# ---- problems: a model, a loss on a batch, a loss on held-out text ----
@dataclass(frozen=True)
class Task:
    model: nn.Module
    loss: Callable[[], Tensor]
    measure: Callable[[], tuple[float, float]]
    """Losses on the half for tuning and on the half for reports."""


def next_token(
    model: nn.Module, training: Tensor, held_out: Tensor, seed: int, batch: int, length: int
) -> Task:
    halves = held_out.split(len(held_out) // 2)[:2]
    return Task(
        model,
        training_loss(model, training, seed, batch, length),
        lambda: (held_out_loss(model, halves[0], length, 512), held_out_loss(model, halves[1], length, 512)),
    )


def enoki(width: int, layers: int, heads: int, seed: int) -> Task:
    from danalab.models import ModelConfig, build_model

    config = ModelConfig(
        "enoki", width, layers, heads, width // heads, 4 * width, vocab_size=512, seq_len=128
    )
    return next_token(build_model(config, seed=seed), *library_tokens(), seed, batch=8, length=128)


def gpt(width: int, layers: int, heads: int, tied: bool, seed: int) -> Task:
    torch.manual_seed(seed)
    return next_token(SmallGPT(65, width, layers, heads, 64, tied), *shakespeare(), seed, batch=16, length=64)


@dataclass(frozen=True)
class Problem:
    title: str
    steps: int
    clip: float
    make: Callable[[int], Task]


PROBLEMS = {
    "enoki-45k": Problem("Enoki, 45 k parameters, 20 tokens each", 890, 0.5, lambda s: enoki(32, 1, 1, s)),
    "enoki-58k": Problem("Enoki, 58 k parameters, 20 tokens each", 1140, 0.5, lambda s: enoki(32, 2, 1, s)),
    "enoki-105k": Problem("Enoki, 105 k parameters, 20 tokens each", 2050, 0.5, lambda s: enoki(48, 2, 2, s)),
    "enoki-164k": Problem("Enoki, 164 k parameters, 20 tokens each", 3200, 0.5, lambda s: enoki(64, 2, 2, s)),
    "enoki-263k": Problem("Enoki, 263 k parameters, 20 tokens each", 5120, 0.5, lambda s: enoki(64, 4, 2, s)),
    "enoki-542k": Problem(
        "Enoki, 542 k parameters, 20 tokens each", 10560, 0.5, lambda s: enoki(96, 4, 3, s)
    ),
    "gpt-tied": Problem(
        "a hand-written GPT with a tied head, tiny Shakespeare", 300, 1.0, lambda s: gpt(64, 3, 4, True, s)
    ),
    "gpt": Problem("a hand-written GPT, tiny Shakespeare", 300, 1.0, lambda s: gpt(96, 2, 4, False, s)),
}


# ---- one class for AdamW, ADana and everything between ----
class Parts(torch.optim.Optimizer):
    """Adam with the parts of ADana as switches; a(t) = delta / (delta + t).

    m <- m + gain1 (g - m)      gain1 = 1 - beta1, or a(t) where beta1 is None; bias-corrected where it is constant
    v <- v + gain2 (g^2 - v)    gain2 likewise
    u  = (fresh g + weight m) / (sqrt(v) + eps)
         fresh = 0, weight = 1 (Adam); fresh = 1, weight = 1 + c (`fresh`), c = (1 + t)^(1 - kappa) or `constant`
    p <- p - lr u, p <- p (1 - s(t) lambda(t)), s = lr / peak,
         lambda = peak decay (AdamW), or omega / (steps / 10 + t) where omega is given
    """

    def __init__(self, params: Iterable[Any], lr: float, **settings: Any):
        chosen = {"beta1": 0.9, "beta2": 0.99, "delta": 8.0, "kappa": 0.85, "fresh": False, "constant": None}
        chosen |= {"eps": 1e-8, "decay": 0.1, "omega": None, "steps": 1} | settings
        super().__init__(params, {"lr": lr, "peak": lr, "t": 0, **chosen})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            group["t"] += 1
            t, a = group["t"], group["delta"] / (group["delta"] + group["t"])
            gains = [a if beta is None else 1 - beta for beta in (group["beta1"], group["beta2"])]
            whole = [1.0 if beta is None else 1 - beta**t for beta in (group["beta1"], group["beta2"])]
            slow = (1.0 + t) ** (1 - group["kappa"]) if group["constant"] is None else group["constant"]
            weight = 1 + slow if group["fresh"] else 1.0
            factor = group["lr"] / group["peak"]
            strength = (
                group["decay"] * group["peak"]
                if group["omega"] is None
                else group["omega"] / (group["steps"] / 10 + t)
            )
            ps = [p for p in group["params"] if p.grad is not None]
            gs = [p.grad for p in ps]
            for p in ps:
                if not self.state[p]:
                    self.state[p] = {"m": torch.zeros_like(p), "v": torch.zeros_like(p)}
            ms, vs = [self.state[p]["m"] for p in ps], [self.state[p]["v"] for p in ps]
            torch._foreach_lerp_(ms, gs, gains[0])
            torch._foreach_lerp_(vs, torch._foreach_mul(gs, gs), gains[1])
            roots = torch._foreach_sqrt(torch._foreach_div(vs, whole[1]))
            torch._foreach_add_(roots, group["eps"])
            us = torch._foreach_mul(ms, weight / whole[0])
            if group["fresh"]:
                torch._foreach_add_(us, gs)
            torch._foreach_addcdiv_(ps, us, roots, value=-group["lr"])
            if group["decayed"]:
                torch._foreach_mul_(ps, 1 - factor * strength)


def parts(model: nn.Module, lr: float, steps: int, **settings: Any) -> torch.optim.Optimizer:
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "decayed": True}, {"params": others, "decayed": False}]
    return Parts(groups, lr, steps=steps, **settings)


# ---- a trial ----
BUILD: dict[str, Callable[..., torch.optim.Optimizer]] = {"parts": parts, "recipe": recipe}


def run(problem: str, family: str, settings: Settings, seed: int) -> dict[str, Any]:
    case = PROBLEMS[problem]
    task = case.make(seed)
    rest = {name: value for name, value in settings.items() if name not in ("lr", "final", "warmup")}
    optimizer = BUILD[family](task.model, settings["lr"], case.steps, **rest)
    peaks = [group["lr"] for group in optimizer.param_groups]
    warmup, final = max(1, round(settings["warmup"] * case.steps)), settings["final"]
    began = time.process_time()
    for i in range(case.steps):
        cosine = final + (1 - final) * (1 + math.cos(math.pi * i / case.steps)) / 2
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * min((i + 1) / warmup, cosine)
        task.loss().backward()
        nn.utils.clip_grad_norm_(task.model.parameters(), case.clip)
        optimizer.step()
        optimizer.zero_grad()
    tuning, report = (round(loss, 5) if math.isfinite(loss) else None for loss in task.measure())
    row = {"problem": problem, "family": family, "settings": settings, "seed": seed, "steps": case.steps}
    return {**row, "tuning": tuning, "report": report, "seconds": round(time.process_time() - began, 1)}


ROWS: dict[str, dict[str, Any]] = {}


def key_of(row: dict[str, Any]) -> str:
    settings = {
        name: float(value) if isinstance(value, int) and not isinstance(value, bool) else value
        for name, value in row["settings"].items()
    }
    return json.dumps([row["problem"], row["family"], settings, row["seed"]], sort_keys=True)


def load() -> None:
    if RESULTS.exists():
        for line in RESULTS.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            ROWS[key_of(row)] = row


class Missing(Exception):
    """A row that is not stored, while only stored ones are read."""


RUNNING = [False]


def once(problem: str, family: str, settings: Settings, seed: int) -> dict[str, Any]:
    key = key_of({"problem": problem, "family": family, "settings": settings, "seed": seed})
    if key not in ROWS:
        if not RUNNING[0]:
            raise Missing
        ROWS[key] = run(problem, family, settings, seed)
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(ROWS[key]) + "\n")
    return ROWS[key]


def loss(row: dict[str, Any], split: str) -> float:
    return math.inf if row[split] is None else row[split]


# ---- tuning: the same number of trials for each contender; edges are followed ----
Dial = tuple[Any, ...]
"""Values in order for a choice of few; ("beta", values...), whose edges are followed; or ("log", low, high):
log-uniform, and 2^(1/2) between neighbours."""


@dataclass(frozen=True)
class Arm:
    """A contender: settings that are fixed or where its search starts, and its dials."""

    family: str
    start: Settings
    dials: dict[str, Dial]
    random: int = 24
    """Random trials in the ranges of the dials; then the best is improved, one dial at a time."""
    trials: int = 36
    finalists: int = FINALISTS


def neighbour(value: Any, dial: Dial, towards: int) -> Any:
    """The next value of a dial; a log-uniform one goes on beyond its range, a beta with half or twice 1 - beta."""
    if dial[0] == "log":
        return float(f"{value * 2 ** (towards / 2):.4g}")
    place = dial.index(value) + towards if value in dial else -1
    if 0 <= place < len(dial) and dial[place] != "beta":
        return dial[place]
    beyond = round(1 - (1 - value) * 2**-towards, 6) if dial[0] == "beta" else -1
    return beyond if beyond >= 0 else None


def drawn(arm: Arm, draw: random.Random) -> Settings:
    found = dict(arm.start)
    for name, dial in arm.dials.items():
        if dial[0] == "log":
            found[name] = float(f"{dial[1] * (dial[2] / dial[1]) ** draw.random():.4g}")
        else:
            found[name] = draw.choice(dial[1:] if dial[0] == "beta" else dial)
    return found


def tune(problem: str, arm: Arm) -> Settings:
    """The settings with the least mean loss over all five tuning seeds, of the best few after `arm.trials` trials."""
    tried: dict[str, float] = {}
    settings_of: dict[str, Settings] = {}

    def score(settings: Settings) -> float:
        key = key_of({"problem": problem, "family": arm.family, "settings": settings, "seed": -1})
        if key not in tried:
            if len(tried) == arm.trials:
                raise BudgetSpent
            losses = [loss(once(problem, arm.family, settings, seed), "tuning") for seed in TUNING_SEEDS]
            tried[key], settings_of[key] = statistics.fmean(losses), settings
        return tried[key]

    draw = random.Random(f"{problem} {sorted(arm.dials)}")
    best = dict(arm.start)
    least = score(best)
    try:
        for _ in range(arm.random):
            candidate = drawn(arm, draw)
            if score(candidate) < least:
                best, least = candidate, score(candidate)
        improved = True
        while improved:
            improved = False
            for name, dial in arm.dials.items():
                for towards in (1, -1):
                    value = neighbour(best[name], dial, towards)
                    while value is not None and score({**best, name: value}) < least:
                        best, improved = {**best, name: value}, True
                        least = score(best)
                        value = neighbour(value, dial, towards)
    except BudgetSpent:
        pass
    seeds = TUNING_SEEDS + FINAL_SEEDS
    finalists = [settings_of[key] for key in sorted(tried, key=tried.__getitem__)[: arm.finalists]]
    return min(
        finalists,
        key=lambda chosen: statistics.fmean(
            loss(once(problem, arm.family, chosen, s), "tuning") for s in seeds
        ),
    )


class BudgetSpent(Exception):
    """All trials of an arm are made."""


def carried(problem: str, arm: Arm) -> Settings:
    """The best settings of the largest tuned size, at the best of three rates around the law lr = a steps^d."""
    best = {size: tune(size, arm) for size in TUNED}
    steps = [math.log(PROBLEMS[size].steps) for size in best]
    slope, level = statistics.linear_regression(steps, [math.log(each["lr"]) for each in best.values()])
    law = math.exp(level + slope * math.log(PROBLEMS[problem].steps))
    rates = [{**best[TUNED[-1]], "lr": float(f"{law * factor:.4g}")} for factor in (0.5, 1.0, 2.0)]

    def score(settings: Settings) -> float:
        seeds = REPORT_SEEDS[:3]
        return statistics.fmean(loss(once(problem, arm.family, settings, s), "tuning") for s in seeds)

    return min(rates, key=score)


# ---- 1. the baseline ----
COMMON: Settings = {"final": 0.1, "warmup": 0.02}
SCHEDULE: dict[str, Dial] = {"final": (0.0, 0.1), "warmup": (0.02, 0.1)}
BETAS: dict[str, Dial] = {
    "beta1": ("beta", 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95),
    "beta2": ("beta", 0.95, 0.98, 0.99, 0.995),
}
_ADAM = {"beta1": 0.9, "beta2": 0.99, "decay": 0.1, **COMMON}
LOG = {"beta1": None, "beta2": None, "fresh": True}
ADAMW = Arm(
    "parts",
    {"lr": 0.0134, **_ADAM},
    {"lr": ("log", 0.004, 0.06), **BETAS, "decay": ("log", 0.02, 1.0), **SCHEDULE},
)
ADAMW_1T = Arm(
    "parts",
    {"lr": 0.0134, "beta1": 0.9, "beta2": 0.99, "omega": 2.0, **COMMON},
    {"lr": ("log", 0.004, 0.06), **BETAS, "omega": ("log", 0.5, 8.0), **SCHEDULE},
)
ADANA = Arm(
    "parts",
    {"lr": 0.0071, "delta": 8.0, "kappa": 0.85, "omega": 2.0, **LOG, **COMMON},
    {
        "lr": ("log", 0.0015, 0.02),
        "kappa": (0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0),
        "delta": ("log", 2.0, 32.0),
        "omega": ("log", 0.5, 8.0),
        **SCHEDULE,
    },
)
MUON = Arm(
    "recipe",
    {
        "lr": 0.016,
        "rest": "adamw",
        "aux_scale": 1.0,
        "momentum": 0.95,
        "normalise": "normuon",
        "decay": 0.1,
        **COMMON,
    },
    {
        "lr": ("log", 0.004, 0.06),
        "aux_scale": ("log", 0.25, 8.0),
        "momentum": ("beta", 0.8, 0.85, 0.9, 0.95, 0.98),
        "decay": ("log", 0.02, 1.0),
        **SCHEDULE,
    },
)
TUNED = ("enoki-45k", "enoki-58k", "enoki-105k", "enoki-164k")
BASELINES = {"AdamW": ADAMW, "ADana": ADANA, "AdamW, decay as 1/t": ADAMW_1T, "NorMuon + AdamW": MUON}

_SHORT = {**_ADAM, "beta1": 0.6}
_HALF: dict[str, Dial] = {"lr": ("log", 0.003, 0.03)}
STEPS_APART: dict[str, Arm] = {
    "AdamW (0.9, 0.99)": Arm("parts", {"lr": 0.0134, **_ADAM}, _HALF, 0, 6),
    "beta1 0.6": Arm("parts", {"lr": 0.019, **_SHORT}, _HALF, 0, 6),
    "log-time beta1": Arm("parts", {"lr": 0.0134, **_ADAM, "beta1": None}, _HALF, 0, 6),
    "+ fresh gradient": Arm(
        "parts", {"lr": 0.0095, **_ADAM, "beta1": None, "fresh": True, "constant": 0.0}, _HALF, 0, 6
    ),
    "+ alpha(t)": Arm("parts", {"lr": 0.0067, **_ADAM, "beta1": None, "fresh": True}, _HALF, 0, 6),
    "+ log-time beta2": Arm("parts", {"lr": 0.0067, **_ADAM, **LOG}, _HALF, 0, 6),
    "+ decay as 1/t: ADana": Arm("parts", {"lr": 0.0067, **LOG, "omega": 2.0, **COMMON}, _HALF, 0, 6),
    "ADana, beta1 0.9": Arm(
        "parts", {"lr": 0.0067, **LOG, "beta1": 0.9, "omega": 2.0, **COMMON}, _HALF, 0, 6
    ),
    "ADana, beta1 0.6": Arm(
        "parts", {"lr": 0.0067, **LOG, "beta1": 0.6, "omega": 2.0, **COMMON}, _HALF, 0, 6
    ),
    "ADana, beta2 0.99": Arm(
        "parts", {"lr": 0.0067, **LOG, "beta2": 0.99, "omega": 2.0, **COMMON}, _HALF, 0, 6
    ),
    "ADana, alpha constant 1": Arm(
        "parts", {"lr": 0.0067, **LOG, "constant": 1.0, "omega": 2.0, **COMMON}, _HALF, 0, 6
    ),
    "AdamW (0.6), decay as 1/t": Arm(
        "parts", {"lr": 0.019, "beta1": 0.6, "beta2": 0.99, "omega": 2.0, **COMMON}, _HALF, 0, 6
    ),
    "AdamW (0.6), log-time beta2": Arm("parts", {"lr": 0.019, **_SHORT, "beta2": None}, _HALF, 0, 6),
}

# ---- 2. the recipe ----
_STAR = {"lr": 0.032, "rest": "star", "aux_scale": 1.0, "momentum": None, "omega": 4.0, **COMMON}
_NANO = {**NANOCHAT, "lr": 0.02, "aux_scale": 1.0, **COMMON}
_MUON = {**_STAR, "rest": "adamw", "omega": None, "decay": 0.1, "momentum": 0.95, "lr": 0.016}
_TWO: dict[str, Dial] = {"lr": ("log", 0.01, 0.1), "aux_scale": ("log", 0.3, 3.0)}


def _arm(base: Settings, **changes: Any) -> Arm:
    return Arm("recipe", {**base, **changes}, _TWO, 4, 8, 2)


RECIPES: dict[str, Arm] = {
    "log-time Muon + Dana-Star-MK4": _arm(_STAR),
    "the same, NorMuon's second moment": _arm(_STAR, normalise="normuon"),
    "the same, embeddings at the rate of matrices (DanaMuon)": _arm(
        _STAR, normalise="normuon", embedding_scale=4.0, lr=0.064
    ),
    "the same, NorMuon and nanochat's rest": _arm(_STAR, normalise="normuon", rest="nanochat"),
    "the same at fixed ratios": _arm(_STAR, normalise="normuon", rest="ratios", lr=0.064),
    "nanochat": _arm(_NANO),
    "log-time Muon + nanochat's rest": _arm(_STAR, rest="nanochat"),
    "nanochat, log-time momentum": _arm({**_NANO, "lr": 0.02}, momentum=None),
    "nanochat, momentum 0.8": _arm(_NANO, momentum=0.8),
    "nanochat, log-time momentum without damped Nesterov": _arm(_NANO, momentum=None, kappa=1.0),
    "the first, rows equilibrated": _arm(_STAR, equilibrate=True),
    "the first, cautious decay": _arm(_STAR, cautious=True),
    "NorMuon + AdamW": _arm(_MUON, normalise="normuon"),
    "Muon + AdamW": _arm(_MUON),
}


@dataclass(frozen=True)
class Study:
    title: str
    problem: str
    arms: dict[str, Arm] = field(repr=False)
    seeds: tuple[int, ...] = REPORT_SEEDS


STUDIES = [
    Study("baseline", "enoki-58k", BASELINES),
    Study("apart", "enoki-58k", STEPS_APART),
    Study("recipe", "gpt", RECIPES, REPORT_SEEDS[:3]),
    Study("recipe", "enoki-58k", RECIPES, REPORT_SEEDS[:3]),
    Study("baseline", "enoki-105k", BASELINES),
    Study("recipe", "gpt-tied", RECIPES, REPORT_SEEDS[:3]),
    Study("apart", "enoki-105k", STEPS_APART),
    Study("baseline", "enoki-45k", BASELINES),
    Study("baseline", "enoki-164k", BASELINES),
    Study("carried", "enoki-263k", BASELINES, REPORT_SEEDS[:3]),
    Study("carried", "enoki-542k", BASELINES, REPORT_SEEDS[:3]),
]


def answer(study: Study) -> dict[str, tuple[Settings, list[float]]]:
    """Contender -> its best settings and its losses by seed; without --run of those whose runs are stored."""
    known: dict[str, tuple[Settings, list[float]]] = {}
    for name, arm in study.arms.items():
        try:
            settings = (carried if study.title == "carried" else tune)(study.problem, arm)
            losses = [loss(once(study.problem, arm.family, settings, s), "report") for s in study.seeds]
        except Missing:
            continue
        known[name] = settings, losses
        if RUNNING[0]:
            print(study.title, study.problem, name, f"{statistics.fmean(losses):.4f}", settings, flush=True)
    return known


def table(study: Study) -> str:
    """A line for each contender: loss, lead over the first, and the dials that were found."""
    known = answer(study)
    if not known:
        return ""
    first = next(iter(known))
    lines = []
    for name, (settings, losses) in known.items():
        lead = "-"
        if name != first:
            difference, interval, _ = paired_t(list(zip(known[first][1], losses, strict=True)))
            lead = f"{difference:+.3f} ({interval.low:+.3f} to {interval.high:+.3f})" if interval else "-"
        dials = ", ".join(f"{dial} {settings[dial]}" for dial in study.arms[name].dials)
        lines.append([name, f"{statistics.fmean(losses):.4f}", lead, dials])
    heading = f"{PROBLEMS[study.problem].title}, {PROBLEMS[study.problem].steps:,} steps:\n\n"
    return (
        heading
        + as_markdown((["contender", "loss [nats]", "lead, 95% interval [nats]", "best settings"], lines))
        + "\n"
    )


def parts_figure(study: Study) -> Figure:
    """How far each contender of a study lies below its first: paired means with their 95% intervals."""
    known = answer(study)
    first, *others = known
    figure, axes = canvas(f"lead over {first} [nats]", "", height=0.28 * len(others) + 0.8)
    for place, name in enumerate(others):
        lead, interval, _ = paired_t(list(zip(known[first][1], known[name][1], strict=True)))
        color = optimizer_color("adana" if name.startswith(("ADana", "+")) else "adamw")
        axes.plot(lead, place, "o", color=color)
        if interval is not None:
            axes.hlines(place, interval.low, interval.high, color=color)
    axes.axvline(0, color=soft(), linewidth=0.8)
    axes.set_yticks(range(len(others)), others)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    return figure


def fill(page: str) -> str:
    """The page with the tables of the stored rows."""
    load()
    titles = {study.title for study in STUDIES}
    parts = {title: "".join(table(study) for study in STUDIES if study.title == title) for title in titles}
    return fill_parts(page, "recipes", parts)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--text", type=Path, default=TEXT[0])
    parser.add_argument("--study", choices=("baseline", "apart", "carried", "recipe"), help="this one alone")
    parser.add_argument("--problem", choices=PROBLEMS, help="this one alone")
    options = parser.parse_args()
    TEXT[0], RUNNING[0] = options.text, options.run
    torch.set_num_threads(1)
    load()
    for study in STUDIES if options.run else ():
        if options.study in (None, study.title) and options.problem in (None, study.problem):
            answer(study)
    RUNNING[0] = False
    for file in PAGES:
        file.write_text(fill(file.read_text(encoding="utf-8")), encoding="utf-8")
    store_figure(
        lambda: parts_figure(next(study for study in STUDIES if study.title == "apart")), "parts_cpu"
    )
