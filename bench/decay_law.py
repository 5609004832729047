"""How strong should weight decay be, and how does that depend on the length of the run? Answers: docs/decay-law.md.

python bench/decay_law.py PHASE ...     runs and appends to bench/results/decay_law_cpu.jsonl; may be killed
python bench/decay_law.py --docs        writes the tables of that file into docs/

Each cell is an optimizer with a law of its weight decay on one of four problems. A search tries factors of 2 in the
learning rate on seed 0 until the best lies between two others; then two more seeds run at the best. One thread; cosine
to a tenth of the peak rate, gradients clipped at 1; AdamW has betas (0.9, 0.95), or beta2 as given.

Problems, and laws of the weight decay:

    transformer       the next byte of Python's standard library, two pre-norm blocks of width 32 on 32 bytes
    mlp               the same byte from the eight before it, one hidden layer (Bengio et al. 2003)
    teacher           the labels that a random network draws for Gaussian inputs; an MLP of two hidden layers
    recurrent         as the transformer, by a GRU of width 32; no setting was chosen on it

    none              no weight decay
    4/t               ADana: omega / (steps / 10 + t), omega = 4; AdamW: omega / steps; both times the schedule
    K lr, 4/t         the same, at most K times the learning rate
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from danalab.experiments.problems import Objective
from danalab.experiments.trials import descend
from danalab.optim import build_optimizer, get_schedule
from danalab.optimizer_facts import warmup_steps
from danalab.scaling.rate_search import next_exponent

ROOT = Path(__file__).parents[1]
STORED = ROOT / "bench" / "results" / "decay_law_cpu.jsonl"
PAGES = [
    ROOT / name
    for name in ("docs/decay-law.md", "docs/findings.md", "notes/decay-law.md", "notes/findings.md")
]

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
    work = task(cell.problem, cell.batch, seed)
    settings: dict[str, Any] = {
        key: float(value) for key, value in [word.split("=") for word in cell.settings.split()]
    }
    if cell.opt == "adamw":
        settings = {"betas": (0.9, settings.get("beta2", 0.95))}
    optimizer = build_optimizer(cell.opt, work.model, lr=lr, **settings)
    set_decay(optimizer, cell, lr)
    schedule = get_schedule("cos_inf", cell.steps, cell.warmup, div_factor=10.0, final_div_factor=1.0)
    return descend(work, optimizer, schedule, cell.steps, 1.0, [cell.steps])[0]


def set_decay(optimizer: torch.optim.Optimizer, cell: Cell, lr: float) -> None:
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
        self.losses: dict[Cell, dict[tuple[float, int], float]] = {}
        """Cell -> (learning rate, seed) -> loss."""
        for line in file.read_text().splitlines() if file.exists() else []:
            row = json.loads(line)
            lr, seed, loss = row.pop("lr"), row.pop("seed"), row.pop("loss")
            self.losses.setdefault(Cell(**row), {})[lr, seed] = math.inf if loss is None else loss

    def loss(self, cell: Cell, lr: float, seed: int) -> float:
        """The loss of a run, which is made if the file does not have it."""
        lr, known = float(f"{lr:.4g}"), self.losses.setdefault(cell, {})
        if (lr, seed) not in known:
            loss = known[lr, seed] = run(cell, lr, seed)
            row = {**asdict(cell), "lr": lr, "seed": seed, "loss": loss if math.isfinite(loss) else None}
            with self.file.open("a") as out:
                print(json.dumps(row), file=out, flush=True)
        return known[lr, seed]

    def rates(self, cell: Cell) -> dict[float, float]:
        """Learning rate -> loss with seed 0."""
        return {lr: loss for (lr, seed), loss in self.losses.get(cell, {}).items() if seed == 0}

    def best(self, cell: Cell) -> tuple[float, list[float]] | None:
        """The best learning rate and its losses by seed; None if it lies at an edge or seeds are missing."""
        tried = self.rates(cell)
        if not tried:
            return None
        lr = min(tried, key=lambda rate: tried[rate])
        losses = [self.losses[cell].get((lr, seed)) for seed in SEEDS]
        if lr in (min(tried), max(tried)) or None in losses:
            return None
        return lr, [loss for loss in losses if loss is not None]

    def start(self, cell: Cell) -> float:
        """The best rate without decay of the longest run so far, AdamW's or ADana's; at first `START`."""
        opt = cell.opt if cell.opt in START else "adana"
        like = {c for c in self.losses if (c.problem, c.opt, c.law) == (cell.problem, opt, "none")}
        known = [(c.steps, found[0]) for c in like if c.steps <= cell.steps and (found := self.best(c))]
        return max(known)[1] if known else START[opt]

    def tune(self, cell: Cell, start: float) -> float:
        """Run the search and the seeds; returns the best learning rate."""
        tried: dict[float, float] = {}
        while len(tried) < MOST_RATES and (exponent := next_exponent(tried)).is_integer():
            tried[exponent] = self.loss(cell, start * GRID**exponent, 0)
        lr = start * GRID ** min(tried, key=lambda exponent: tried[exponent])
        for seed in SEEDS:
            self.loss(cell, lr, seed)
        return lr


# ---- problems ----


BYTES = 128
"""The alphabet: ASCII."""
HELD_OUT = 100_000
"""Bytes of other files than those that are trained on."""
BATCH = {"transformer": 16, "mlp": 64, "teacher": 64, "recurrent": 16}
"""Sequences or examples in a batch, by problem."""

Draw = Callable[[torch.Generator], tuple[Tensor, Tensor]]
"""Generator -> (inputs, targets)."""


def task(problem: str, batch: int, seed: int) -> Objective:
    """A problem with drawn weights and its own stream of batches; measured by the loss on a fixed held-out batch."""
    draws, measured_on = _batches(problem)
    torch.manual_seed(seed)
    model, draw, generator = MODELS[problem](), draws(batch), torch.Generator().manual_seed(1000 + seed)

    def loss() -> Tensor:
        inputs, targets = draw(generator)
        return F.cross_entropy(model(inputs), targets)

    def measure() -> float:
        with torch.no_grad():
            inputs, targets = measured_on(torch.Generator().manual_seed(12345))
            return F.cross_entropy(model(inputs), targets).item()

    return Objective(model, loss, measure)


@cache
def _batches(problem: str) -> tuple[Callable[[int], Draw], Draw]:
    """(size of a batch -> batches, the held-out batch)."""
    if problem == "teacher":
        return _labels, _labels(16384)
    train, held_out = _text()
    if problem == "mlp":
        return (_windows(train, 8, lambda y: y[:, -1]), _windows(held_out, 8, lambda y: y[:, -1])(8192))
    return (_windows(train, 32, lambda y: y.flatten()), _windows(held_out, 32, lambda y: y.flatten())(256))


class Block(nn.Module):
    """A pre-norm transformer block with heads of 16."""

    def __init__(self, width: int):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (-1, 16)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """[batch, 32] -> logits [batch x 32, BYTES]."""

    def __init__(self, width: int = 32):
        super().__init__()
        self.embed, self.positions = nn.Embedding(BYTES, width), nn.Embedding(32, width)
        self.blocks = nn.Sequential(Block(width), Block(width), nn.LayerNorm(width))
        self.head = nn.Linear(width, BYTES, bias=False)
        for embedding in (self.embed, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.embed(tokens) + self.positions.weight)).flatten(0, 1)


class Recurrent(nn.Module):
    """[batch, 32] -> logits [batch x 32, BYTES]."""

    def __init__(self, width: int = 32):
        super().__init__()
        self.embed, self.gru = nn.Embedding(BYTES, width), nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, BYTES, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.gru(self.embed(tokens))[0]).flatten(0, 1)


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Embedding(BYTES, 16),
        nn.Flatten(1),
        nn.Linear(128, 96),
        nn.Tanh(),
        nn.Linear(96, BYTES, bias=False),
    )


def _classifier() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 10))


MODELS = {"transformer": Transformer, "mlp": _mlp, "teacher": _classifier, "recurrent": Recurrent}


def _windows(text: Tensor, length: int, targets: Callable[[Tensor], Tensor]) -> Callable[[int], Draw]:
    offsets = torch.arange(length + 1)

    def of_size(count: int) -> Draw:
        def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
            windows = text[torch.randint(len(text) - length, (count, 1), generator=generator) + offsets]
            return windows[:, :-1], targets(windows[:, 1:])

        return draw

    return of_size


def _labels(count: int) -> Draw:
    teacher = nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 10))
    fixed = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for p in teacher.parameters():
            p.normal_(std=3 / p.shape[-1] ** 0.5, generator=fixed)

    def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 20, generator=generator)
        with torch.no_grad():
            return x, teacher(x).div(2).softmax(-1).multinomial(1, generator=generator)[:, 0]

    return draw


@cache
def _text() -> tuple[Tensor, Tensor]:
    from danalab.data.sources.text import StdlibSource

    parts = ["".join(c for c in text if ord(c) < BYTES) for text in StdlibSource().iter_documents()]
    train, held_out = "".join(parts[1::10] + parts[2::10])[:2_000_000], "".join(parts[0::10])[:HELD_OUT]
    return _bytes(train), _bytes(held_out)


def _bytes(text: str) -> Tensor:
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).long()


# ---- what is run ----


def cells(
    problems: Iterable[str], steps: Iterable[int], laws: Mapping[str, tuple[str, ...]], share: int = 1
) -> list[Cell]:
    """All combinations; `share`: the batch is that many times smaller."""
    return [
        Cell(problem, length, BATCH[problem] // share, opt, law, warmup_steps(length))
        for length in steps
        for problem in problems
        for opt, each in laws.items()
        for law in each
    ]


THREE = ("mlp", "teacher", "transformer")
ORDER = ("transformer", "mlp", "teacher", "recurrent")
DEFAULT = "2 lr, 4/t"
"""The law of `omega=4.0, horizon=STEPS`."""
LAWS = {
    "adana": ("none", "2 lr, 4/t", "1 lr, 4/t", "0.5 lr, 4/t", "4/t"),
    "adamw": ("none", "0.5 lr, 4/t", "2 lr, 4/t"),
}
FEW = {"adana": ("none", "2 lr, 4/t", "1 lr, 4/t"), "adamw": ("none", "0.5 lr, 4/t", "2 lr, 4/t")}
FAMILY: dict[str, tuple[str, ...]] = dict.fromkeys(("dana-star-mk4", "dana-mk4", "dana-star"), ("2 lr, 4/t",))
ADANA = {"adana": ("2 lr, 4/t",)}
CHANGES = ("beta2 0.9", "beta2 0.99", "kappa 0.7", "kappa 1.0", "tau (Dana-Star)", "clip (Dana-MK4)")
CHANGES += ("no weight decay", "weight decay unbounded")
"""Lines of the page; the appendix has all."""
FINDINGS = ("beta2=0.9", "beta2=0.95", "beta2=0.99", "beta2=0.999", "kappa=0.7", "kappa=1.0")
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
        "betas": [
            replace(cell, settings="beta2=0.999")
            for cell in cells(THREE, (30, 60, 150, 600), {"adamw": ("none",)})
        ],
        "findings": [
            replace(cell, settings=settings)
            for settings in FINDINGS
            for cell in cells(THREE, (150,), ADANA) + cells(("mlp", "teacher"), (600,), ADANA)
        ],
    }


def measure(names: Iterable[str], results: Results) -> None:
    """Run phases; a search begins at the best rate of the law before it. Runs that `results` has are not repeated."""
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


# ---- tables ----


def rows_of(
    results: Results, opt: str, default: bool = False
) -> dict[tuple[str, int, int], dict[str, list[float]]]:
    """(problem, steps, batch) -> law and settings -> losses by seed at the best rate, with the usual warmup."""
    found: dict[tuple[str, int, int], dict[str, list[float]]] = {}
    for cell in results.losses:
        best = results.best(cell)
        if not best or cell.opt != opt or cell.warmup != warmup_steps(cell.steps):
            continue
        name = f"{cell.law} {cell.settings}".rstrip()
        if not default or name == DEFAULT:
            found.setdefault((cell.problem, cell.steps, cell.batch), {})[name] = best[1]
    return found


def difference(a: list[float], b: list[float]) -> str:
    """Mean and standard error of a - b, paired by seed."""
    gaps = [x - y for x, y in zip(a, b, strict=True)]
    return f"{statistics.fmean(gaps):+.3f} ± {statistics.stdev(gaps) / len(gaps) ** 0.5:.3f}"


def laws_table(results: Results, opt: str, laws: dict[str, str]) -> str:
    """How much worse each law is than the best of the row."""
    lines = [["problem", "steps", "batch", "best", *laws.values()]]
    rows = rows_of(results, opt)
    for place in sorted(rows, key=lambda place: (ORDER.index(place[0]), place[1], -place[2])):
        found = {law: losses for law, losses in rows[place].items() if law in laws}
        best = min(found.values(), key=statistics.fmean)
        shown = [difference(found[law], best) if law in found and found[law] is not best else
                 ("0" if law in found else "-") for law in laws]  # fmt: skip
        lines.append([place[0], f"{place[1]:,}", str(place[2]), f"{statistics.fmean(best):.3f}", *shown])
    return as_markdown(lines)


def bounds_table(results: Results, laws: dict[str, str]) -> str:
    """How much worse each law is than the best of the same problem and steps: the mean over problems, and the worst."""
    lines = [
        ["weight decay", *(f"{name}: {what}" for name in ("ADana", "AdamW") for what in ("mean", "worst"))]
    ]
    gaps = {opt: _gaps(results, opt, laws) for opt in ("adana", "adamw")}
    for law, name in laws.items():
        line = [name]
        for own in gaps.values():
            known = own.get(law)
            line += [f"{statistics.fmean(known):+.3f}", f"{max(known):+.3f}"] if known else ["-", "-"]
        lines.append(line)
    return as_markdown(lines)


def _gaps(results: Results, opt: str, names: Collection[str]) -> dict[str, list[float]]:
    """Law -> loss above the best law's where all were tried, at the usual batch in runs of 60 to 600 steps."""
    found: dict[str, list[float]] = {}
    for (problem, steps, batch), laws in rows_of(results, opt).items():
        if problem in THREE and 60 <= steps <= 600 and batch == BATCH[problem]:
            losses = {law: statistics.fmean(each) for law, each in laws.items() if law in names}
            for law, loss in losses.items():
                found.setdefault(law, []).append(loss - min(losses.values()))
    return found


def changes_table(results: Results, names: Collection[str]) -> str:
    """The mean of each line of the findings over the problems, and its least and its largest."""
    header, _, *lines = findings_table(results).splitlines()
    shown = [["change to ADana", f"mean over {header.count('|') - 2} cases", "lowest", "highest"]]
    for name, *cells in ([cell.strip() for cell in line.strip("|").split("|")] for line in lines):
        values = [float(cell.partition("±")[0]) for cell in cells]
        if name in names:
            shown.append(
                [name, *(f"{value:+.3f}" for value in (statistics.fmean(values), min(values), max(values)))]
            )
    return as_markdown(shown)


def findings_table(results: Results) -> str:
    """The difference that each setting makes to ADana with its defaults, each at its own best learning rate."""
    base = Cell("", 0, 0, "adana", DEFAULT, 0)
    changes = {
        **{settings.replace("=", " "): replace(base, settings=settings) for settings in FINDINGS},
        "tau (Dana-Star)": replace(base, opt="dana-star"),
        "clip (Dana-MK4)": replace(base, opt="dana-mk4"),
        "both (Dana-Star-MK4)": replace(base, opt="dana-star-mk4"),
        "no weight decay": replace(base, law="none"),
        "weight decay unbounded": replace(base, law="4/t"),
    }
    places = [("transformer", 150), ("mlp", 150), ("mlp", 600), ("teacher", 150), ("teacher", 600)]
    lines = [["ADana, but", *(f"{problem}, {steps} steps" for problem, steps in places)]]
    for name, change in changes.items():
        line = [name]
        for problem, steps in places:
            at = {"problem": problem, "steps": steps, "batch": BATCH[problem]}
            cell, usual = (replace(each, **at, warmup=warmup_steps(steps)) for each in (change, base))
            found, known = results.best(cell), results.best(usual)
            line.append(difference(found[1], known[1]) if found and known else "-")
        lines.append(line)
    return as_markdown(lines)


def as_markdown(lines: list[list[str]]) -> str:
    """A table whose first line is its head."""
    return "\n".join(
        "| " + " | ".join(line) + " |" for line in [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    )


def tables(results: Results) -> dict[str, str]:
    """The tables of the docs by the name of their marker."""
    laws = {
        "none": "none",
        "0.5 lr, 4/t": "at most 0.5 lr",
        "1 lr, 4/t": "at most lr",
        "2 lr, 4/t": "at most 2 lr",
    }
    return {
        "laws of adana": laws_table(results, "adana", {**laws, "4/t": "unbounded"}),
        "laws of adamw": laws_table(results, "adamw", laws),
        "bounds": bounds_table(results, {**laws, "4/t": "unbounded"}),
        "findings": findings_table(results),
        "changes": changes_table(results, CHANGES),
    }


def fill(page: str) -> str:
    """The text of a page with the tables of the stored rows between its markers."""
    for name, table in tables(Results(STORED)).items():
        start, end = f"<!-- decay law: {name} -->\n", "<!-- end -->"
        if start in page:
            head, rest = page.split(start)
            page = head + start + table + "\n" + rest[rest.index(end) :]
    return page


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("phases", nargs="*", metavar="PHASE", help=", ".join(phases()))
    parser.add_argument("--docs", action="store_true", help="write the tables into the pages of docs/")
    flags = parser.parse_args()
    torch.set_num_threads(1)
    if unknown := set(flags.phases) - phases().keys():
        parser.error(f"unknown phase {', '.join(unknown)}; known: {', '.join(phases())}")
    measure(flags.phases, Results(STORED))
    if flags.docs:
        for page in PAGES:
            page.write_text(fill(page.read_text(encoding="utf-8")), encoding="utf-8")
