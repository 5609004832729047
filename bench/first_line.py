"""What to take, and at which rates: the first line that people type, on several problems at once.

    python bench/first_line.py --run --text FILE    # FILE: tiny Shakespeare; goes on where it stopped
    python bench/first_line.py                      # the tables from bench/results/first_line_cpu.jsonl

The rivals search a grid of two dials by factors of 2 and go on until the best has worse neighbours on all sides. Ours
have the three rates that we recommend, at their defaults, with omega = 4. Training is a plain loop, as in anybody's
trainer: warmup, cosine to a tenth of the peak, gradients clipped to norm 1. A seed sets initial weights and data, the
same for all. `--problems` chooses some of them. The digits are scikit-learn's, which must be installed.
"""

import argparse
import itertools
import json
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from danalab.experiments.formats import as_markdown
from danalab.experiments.problems import Objective, get_problem, library_bytes
from danalab.experiments.statistics import student_interval
from danalab.experiments.trials import workers
from danalab.hardware import available_cores
from danalab.models import ModelConfig, build_model
from danalab.optim import build_optimizer
from danalab.optimizer_facts import rates_to_try
from danalab_bench.orthogonal import NANOCHAT, recipe
from danalab_bench.pages import fill_parts
from danalab_bench.texts import TEXT, SmallGPT, held_out_loss, library_tokens, shakespeare, training_loss

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "first_line_cpu.jsonl"
PAGES = [ROOT / "docs" / "small-models.md", ROOT / "notes" / "recipes.md"]
Rows = list[dict[str, Any]]


# ---- the problems ----
@dataclass(frozen=True)
class Problem:
    """A model, its data and the recipe that a person would use for it."""

    title: str
    steps: int
    warmup: int
    make: Callable[[int], Objective]
    """Seed -> task."""


def next_token(
    model: nn.Module,
    training: Tensor,
    held_out: Tensor,
    seed: int,
    batch: int,
    length: int,
    windows: int = 640,
) -> Objective:
    return Objective(
        model,
        training_loss(model, training, seed, batch, length),
        lambda: held_out_loss(model, held_out, length, windows),
    )


def own_gpt(seed: int) -> Objective:
    """Three layers of width 64, tied head."""
    torch.manual_seed(seed)
    return next_token(SmallGPT(65, 64, 3, 4, 64, tied=True), *shakespeare(), seed, batch=16, length=64)


def nanogpt_shakespeare(seed: int) -> Objective:
    """nanoGPT's character Shakespeare as its README trains it on a CPU."""
    config = ModelConfig("gpt", 128, 4, 4, 32, 512, vocab_size=65, seq_len=64)
    model = build_model(config, init="karpathy-gpt2", seed=seed)
    return next_token(model, *shakespeare(), seed, batch=12, length=64)


def nanogpt_track(seed: int) -> Objective:
    config = ModelConfig("gpt", 64, 3, 4, 16, 256, vocab_size=256, seq_len=128)
    model = build_model(config, init="karpathy-gpt2", seed=seed)
    return next_token(model, *library_bytes(), seed, batch=16, length=128, windows=256)


def enoki(width: int, heads: int, seed: int) -> Objective:
    config = ModelConfig("enoki", width, 2, heads, width // heads, 4 * width, vocab_size=512, seq_len=128)
    return next_token(
        build_model(config, seed=seed), *library_tokens(), seed, batch=8, length=128, windows=512
    )


class Residual(nn.Module):
    """Two 3 x 3 convolutions with batch normalisation, and a short cut."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.shortcut(x) + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


@cache
def scanned_digits() -> tuple[Tensor, Tensor]:
    """scikit-learn's 1,797 handwritten digits, [count, 1, 8, 8] from 0 to 1, in a fixed random order; labels."""
    from sklearn.datasets import load_digits

    digits: Any = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    return torch.tensor(digits.images, dtype=torch.float32)[order, None] / 16, torch.tensor(digits.target)[
        order
    ]


def digits(seed: int) -> Objective:
    """A residual network of 0.18 M parameters on digits that are shifted at random; measured on 500 of them."""
    images, labels = scanned_digits()
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 24, 3, 1, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU(),
        Residual(24, 24, 1), Residual(24, 48, 2), Residual(48, 96, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 10),
    )  # fmt: skip
    draw = torch.Generator().manual_seed(seed)

    def loss() -> Tensor:
        model.train()
        chosen = torch.randint(500, len(images), (64,), generator=draw)
        dy, dx = torch.randint(-1, 2, (2,), generator=draw).tolist()
        return F.cross_entropy(model(images[chosen].roll((dy, dx), (2, 3))), labels[chosen])

    def measure() -> float:
        model.eval()
        with torch.no_grad():
            return float(F.cross_entropy(model(images[:500]), labels[:500]))

    return Objective(model, loss, measure)


def kept_gpt(seed: int) -> Objective:
    """Three layers of width 80 with torch's own initial weights, a head of its own, on bytes."""
    torch.manual_seed(seed)
    model = SmallGPT(256, 80, 3, 4, 96, tied=False)
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    return next_token(model, *library_bytes(), seed, batch=12, length=96)


def kept_llama(seed: int) -> Objective:
    config = ModelConfig("llama", 48, 3, 3, 16, 128, vocab_size=512, seq_len=96)
    return next_token(build_model(config, seed=seed), *library_tokens(), seed, batch=16, length=96)


@cache
def torch_bytes() -> tuple[Tensor, Tensor]:
    """Bytes of the Python files of torch.nn to train on, and of every tenth of them to measure on."""
    files = sorted((Path(torch.__file__).parent / "nn").rglob("*.py"))
    held_out = files[::10]
    texts = (
        b"".join(f.read_bytes() for f in part) for part in ([f for f in files if f not in held_out], held_out)
    )
    training, measured = (torch.frombuffer(bytearray(text), dtype=torch.uint8).long() for text in texts)
    return training, measured


def deep_gpt(seed: int) -> Objective:
    """Four layers of width 80, a head of its own, short windows in larger batches."""
    torch.manual_seed(seed)
    return next_token(SmallGPT(65, 80, 4, 4, 48, tied=False), *shakespeare(), seed, batch=24, length=48)


def kept_qwen3(seed: int) -> Objective:
    config = ModelConfig("qwen3", 56, 2, 4, 14, 168, vocab_size=256, seq_len=112)
    return next_token(build_model(config, seed=seed), *torch_bytes(), seed, batch=12, length=112)


PROBLEMS = {
    "own-gpt": Problem("a hand-written GPT, tiny Shakespeare", 300, 6, own_gpt),
    "shakespeare": Problem("nanoGPT's character Shakespeare on a CPU", 2000, 100, nanogpt_shakespeare),
    "nanogpt": Problem("a small GPT on bytes of the standard library", 600, 100, nanogpt_track),
    "images": Problem("a convolutional network on gratings", 150, 7, get_problem("images").make),
    "enoki-58k": Problem("Enoki, 58 k parameters, 20 tokens each", 1140, 22, lambda seed: enoki(32, 1, seed)),
    "enoki-105k": Problem(
        "Enoki, 105 k parameters, 20 tokens each", 2050, 41, lambda seed: enoki(48, 2, seed)
    ),
    "digits": Problem("a residual network with batch normalisation on scanned digits", 300, 15, digits),
    "kept-gpt": Problem("a hand-written GPT with torch's initial weights, on bytes", 500, 10, kept_gpt),
    "kept-llama": Problem("Llama's architecture", 700, 14, kept_llama),
    "deep-gpt": Problem("kept back: a deeper GPT, tiny Shakespeare", 400, 8, deep_gpt),
    "kept-qwen3": Problem("kept back: Qwen3 on bytes of torch's source", 600, 12, kept_qwen3),
}


# ---- the contenders ----
def torch_muon(model: nn.Module, lr: float, steps: int, aux_lr: float) -> list[torch.optim.Optimizer]:
    """torch's Muon at AdamW's update size on hidden matrices, torch's AdamW on the rest, as their documents advise."""
    from danalab.optim.groups import parameter_kinds

    kinds = parameter_kinds(model)
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    matrices = [p for name, p in named if kinds[name] == "matrix" and p.ndim == 2]
    chosen = {id(p) for p in matrices}
    rest = [p for _, p in named if id(p) not in chosen]
    return [
        torch.optim.Muon(matrices, lr=lr, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=aux_lr, betas=(0.9, 0.99), weight_decay=0.01, fused=True),
    ]


def adamw(model: nn.Module, lr: float, steps: int, beta2: float) -> list[torch.optim.Optimizer]:
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return [torch.optim.AdamW(groups, lr=lr, betas=(0.9, beta2), fused=True)]


def nanochat(model: nn.Module, lr: float, steps: int, aux_scale: float) -> list[torch.optim.Optimizer]:
    """nanochat's optimizer, from its equations."""
    return [recipe(model, lr, steps, aux_scale=aux_scale, **NANOCHAT)]


def muon_by_kind(normalise: str | None) -> Callable[..., list[torch.optim.Optimizer]]:
    """Muon, or NorMuon, with nanochat's betas and ratios of rates for embedding, head and vectors."""

    def build(model: nn.Module, lr: float, steps: int, aux_scale: float) -> list[torch.optim.Optimizer]:
        return [recipe(model, lr, steps, aux_scale=aux_scale, rest="ratios", normalise=normalise)]

    return build


def soap(model: nn.Module, lr: float, steps: int, beta2: float) -> list[torch.optim.Optimizer]:
    return [build_optimizer("soap", model, lr=lr, betas=(0.95, beta2), weight_decay=0.1)]


def ours(name: str) -> Callable[..., list[torch.optim.Optimizer]]:
    def build(model: nn.Module, lr: float, steps: int, **settings: Any) -> list[torch.optim.Optimizer]:
        return [build_optimizer(name, model, lr=lr, **{"omega": 4.0, "horizon": steps, **settings})]

    return build


BUILD: dict[str, Callable[..., list[torch.optim.Optimizer]]] = {
    "dana-muon": ours("dana-muon"),
    "adana": ours("adana"),
    "torch-muon": torch_muon,
    "nanochat": nanochat,
    "adamw": adamw,
}
FURTHER: dict[str, Callable[..., list[torch.optim.Optimizer]]] = {
    "muon-by-kind": muon_by_kind(None),
    "normuon-by-kind": muon_by_kind("normuon"),
    "soap": soap,
}
"""More rivals of DanaMuon, on the two problems that were kept back."""
KEPT_BACK = ("deep-gpt", "kept-qwen3")
NAMES = {
    "torch-muon": "torch's Muon + AdamW",
    "nanochat": "nanochat's recipe",
    "adamw": "torch's AdamW",
    "dana-muon": "`DanaMuon`",
    "adana": "`ADana`",
    "muon-by-kind": "Muon, the rest by kind",
    "normuon-by-kind": "NorMuon, the rest by kind",
    "soap": "SOAP",
}
RIVALS = {"dana-muon": ("torch-muon", "nanochat"), "adana": ("adamw",)}
"""What we recommend -> the baselines that it must beat, which have three times as many trials."""
RATES: dict[str, Sequence[float]] = {
    "torch-muon": (8e-3, 1.6e-2, 3.2e-2),
    "nanochat": (0.02, 0.04, 0.08),
    "adamw": (2e-3, 4e-3, 8e-3, 1.6e-2),
    "muon-by-kind": (8e-3, 1.6e-2, 3.2e-2),
    "normuon-by-kind": (8e-3, 1.6e-2, 3.2e-2),
    "soap": (2e-3, 4e-3, 8e-3, 1.6e-2),
    **{name: rates_to_try(name) for name in RIVALS},
}
DIALS: dict[str, tuple[str, Sequence[float]]] = {
    "torch-muon": ("aux_lr", (2e-3, 4e-3, 8e-3)),
    "nanochat": ("aux_scale", (0.5, 1.0, 2.0)),
    "adamw": ("beta2", (0.95, 0.99)),
    "muon-by-kind": ("aux_scale", (0.5, 1.0, 2.0)),
    "normuon-by-kind": ("aux_scale", (0.5, 1.0, 2.0)),
    "soap": ("beta2", (0.95, 0.99)),
}
"""The rivals' second dial. Rates of rivals go on beyond the grid by factors of 2."""
SEEDS = {"own-gpt": 5, "images": 5, "digits": 5}
"""Runs of the best setting; three where a problem is not named."""


# ---- running ----
def run(problem: str, opt: str, lr: float, settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """One run as a row."""
    recipe = PROBLEMS[problem]
    task = recipe.make(seed)
    optimizers = {**BUILD, **FURTHER}[opt](task.model, lr, recipe.steps, **settings)

    def factor(step: int) -> float:
        cosine = 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, step / recipe.steps)))
        return min((step + 1) / recipe.warmup, cosine)

    schedulers = [torch.optim.lr_scheduler.LambdaLR(each, factor) for each in optimizers]
    began = time.process_time()
    for _ in range(recipe.steps):
        loss = task.loss()
        loss.backward()
        nn.utils.clip_grad_norm_(task.model.parameters(), 1.0)
        for each in (*optimizers, *schedulers):
            each.step()
        for each in optimizers:
            each.zero_grad()
    loss, seconds = task.measure(), time.process_time() - began
    return {"problem": problem, "opt": opt, "lr": lr, "settings": settings, "seed": seed, "steps": recipe.steps,
            "loss": round(loss, 5) if math.isfinite(loss) else None, "seconds": round(seconds, 1)}  # fmt: skip


def read_rows() -> Rows:
    return (
        [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
        if RESULTS.exists()
        else []
    )


def stored(row: dict[str, Any]) -> tuple[Any, ...]:
    return (row["problem"], row["opt"], row["lr"], json.dumps(row["settings"], sort_keys=True), row["seed"])


def once(problem: str, opt: str, lr: float, settings: dict[str, Any], seed: int = 0) -> float:
    """Loss of a run, from the stored rows or made now."""
    wanted = stored({"problem": problem, "opt": opt, "lr": lr, "settings": settings, "seed": seed})
    row = next((each for each in read_rows() if stored(each) == wanted), None)
    if row is None:
        row = run(problem, opt, lr, settings, seed)
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")  # at once: other processes add rows too
    return loss_of(row)


def loss_of(row: dict[str, Any]) -> float:
    return math.inf if row["loss"] is None else row["loss"]


def search(problem: str, opt: str) -> None:
    """The grid; of a rival, both dials further until the best has worse neighbours on all sides; more seeds there."""
    name, values = DIALS.get(opt, ("", (0.0,)))  # ours have no dial
    tried = {
        (lr, value): once(problem, opt, lr, {name: value} if name else {})
        for lr, value in itertools.product(RATES[opt], values)
    }
    while opt not in RIVALS:
        lr, value = min(tried, key=tried.__getitem__)
        beside = [(2 * lr, value), (lr / 2, value)]
        beside += [] if name == "beta2" else [(lr, 2 * value), (lr, value / 2)]
        further = next((each for each in beside if each not in tried), None)
        if further is None:
            break
        tried[further] = once(problem, opt, further[0], {name: further[1]})
    lr, settings, _ = best(read_rows(), problem, opt)
    for seed in range(1, SEEDS.get(problem, 3)):
        once(problem, opt, lr, settings, seed)


def search_on(text: Path, problem: str, opt: str) -> None:
    """`search` in a process of its own: the rows of a problem and optimizer depend on no others."""
    TEXT[0] = text
    search(problem, opt)


def best(rows: Rows, problem: str, opt: str) -> tuple[float, dict[str, Any], float]:
    """(rate, settings, loss) of the best trial; ours have the rates that we recommend and nothing else."""
    trials = [row for row in rows if (row["problem"], row["opt"], row["seed"]) == (problem, opt, 0)]
    trials = [row for row in trials if opt not in RIVALS or row["lr"] in RATES[opt]]
    row = min(trials, key=loss_of)
    return row["lr"], row["settings"], loss_of(row)


def losses(rows: Rows, problem: str, opt: str) -> list[float]:
    """Losses at the best setting, by seed."""
    lr, settings, _ = best(rows, problem, opt)
    chosen = [row for row in rows if (row["problem"], row["opt"], row["lr"]) == (problem, opt, lr)]
    by_seed = {row["seed"]: loss_of(row) for row in chosen if row["settings"] == settings}
    return [by_seed[seed] for seed in sorted(by_seed)]


# ---- the pages ----


def finished(rows: Rows) -> list[str]:
    """Problems with all seeds of all contenders."""
    return [problem for problem in PROBLEMS if all(is_done(rows, problem, opt) for opt in BUILD)]


def is_done(rows: Rows, problem: str, opt: str) -> bool:
    has_rows = any((row["problem"], row["opt"]) == (problem, opt) for row in rows)
    return has_rows and len(losses(rows, problem, opt)) == SEEDS.get(problem, 3)


def loss_cell(rows: Rows, problem: str, opt: str) -> str:
    """Mean loss, and the settings that have it."""
    lr, settings, _ = best(rows, problem, opt)
    rate = f"{lr:g}" + "".join(f", {name} {value:g}" for name, value in settings.items())
    return f"{fmean(losses(rows, problem, opt)):.3f} at {rate}"


def lead_cell(rows: Rows, problem: str, opt: str, over: str) -> str:
    return "{:+.3f} ({:+.3f} to {:+.3f})".format(*lead(rows, problem, opt, over))


def lead(rows: Rows, problem: str, opt: str, over: str) -> tuple[float, float, float]:
    """Mean loss of `over` minus that of `opt`, paired by seed, with its 95% interval [nats]."""
    pairs = zip(losses(rows, problem, over), losses(rows, problem, opt), strict=True)
    leads = [theirs - own for theirs, own in pairs]
    known = student_interval(fmean(leads), stdev(leads) / len(leads) ** 0.5, len(leads) - 1)
    return fmean(leads), known.low, known.high


def runs_table(rows: Rows) -> tuple[list[str], list[list[str]]]:
    """A line for each problem: best rates and losses of ours and of torch's, and leads with intervals."""
    lines = []
    for problem in finished(rows):
        cells = [f"{PROBLEMS[problem].title}; {PROBLEMS[problem].steps:,} steps"]
        for opt, rivals in RIVALS.items():
            for each in (opt, *rivals):
                cells.append(loss_cell(rows, problem, each))
                if each in rivals:
                    cells.append(lead_cell(rows, problem, opt, each))
        lines.append(cells)
    head = ["problem"]
    for opt, rivals in RIVALS.items():
        head.append(f"{NAMES[opt]} [nats]")
        for rival in rivals:
            head += [f"{NAMES[rival]} [nats]", "lead, 95% interval [nats]"]
    return head, lines


def further_table(rows: Rows) -> tuple[list[str], list[list[str]]]:
    """A line for each further rival and problem with all its seeds."""
    lines = []
    for problem, opt in itertools.product(KEPT_BACK, FURTHER):
        if is_done(rows, problem, opt):
            cells = [loss_cell(rows, problem, opt), lead_cell(rows, problem, "dana-muon", opt)]
            lines.append([PROBLEMS[problem].title, NAMES[opt], *cells])
    return ["problem", "rival", "its loss [nats]", "lead of `DanaMuon`, 95% interval [nats]"], lines


def cost(rows: Rows) -> str:
    """CPU time of a step, model included, in units of that with torch's AdamW: medians over problems."""

    def seconds(problem: str, opt: str) -> float:
        return median(row["seconds"] for row in rows if (row["problem"], row["opt"]) == (problem, opt))

    ratios = {
        opt: median(seconds(each, opt) / seconds(each, "adamw") for each in finished(rows))
        for opt in ("dana-muon", "torch-muon", "nanochat")
    }
    each = ", ".join(f"{NAMES[opt]} {ratio:.2f}" for opt, ratio in ratios.items())
    return f"CPU time of a step with its model, in AdamW's: {each} (the last is eager).\n"


def fill(page: str) -> str:
    """The page with the table of the stored rows."""
    rows = read_rows()
    tables = {"runs": as_markdown(runs_table(rows)), "further": as_markdown(further_table(rows))}
    return fill_parts(page, "first", {**tables, "cost": cost(rows)})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--text", type=Path, default=TEXT[0])
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    options = parser.parse_args()
    if options.run:
        import first_line  # a process finds what it calls by the name of its module

        pairs = [*itertools.product(options.problems, BUILD)]
        pairs += itertools.product([each for each in KEPT_BACK if each in options.problems], FURTHER)
        with workers(available_cores()) as pool:
            searches = {
                pool.submit(first_line.search_on, options.text.resolve(), *pair): ", ".join(pair)
                for pair in pairs
            }
            for ended in as_completed(searches):
                ended.result()
                print(searches[ended], flush=True)
    for page in PAGES:
        page.write_text(fill(page.read_text(encoding="utf-8")), encoding="utf-8")
