"""Rare tokens: the probability that an optimizer gives them at rest, in closed form, on a table, and on a language.

The table has one row of logits for each context; each row has the same frequencies in its own random order, and draws
one token a step. The language model is an embedding of the last token and a head, both learned.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.optimize import brentq
from scipy.special import stdtrit
from torch import nn

from danalab.errors import UserError
from danalab.optim import build_optimizer
from danalab.optim.schedules import get_schedule, lr_scheduler
from danalab.theory.dynamics.rare_tokens import equilibrium, periodic_ratio, random_ratio
from danalab.theory.studies.study import Study, canvas, label

Build = Callable[[list[torch.Tensor]], torch.optim.Optimizer]
"""An optimizer of parameters."""
_CHUNK = 500  # steps whose tokens are drawn together


@dataclass(frozen=True)
class RareTokenOptimizer:
    """An optimizer of the study."""

    opt: str
    table_lr: float
    """So small that a token's probability hardly moves between its arrivals."""
    language_lr: float
    """Middle of the grid of learning rates."""
    color: str
    settings: dict[str, Any] = field(default_factory=dict)

    def at(self, lr: float) -> Build:
        """The optimizer with this learning rate."""
        return partial(build_optimizer, self.opt, lr=lr, **self.settings)


def _adamw(beta1: float, beta2: float, color: str, **settings: Any) -> RareTokenOptimizer:
    return RareTokenOptimizer("adamw", 0.005, 8e-3, color, {"betas": (beta1, beta2), "weight_decay": 0.0, **settings})


CONTENDERS = {
    "SGD": RareTokenOptimizer("sgd", 0.1, 1.0, "#7f7f7f"),
    "Muon": RareTokenOptimizer("muon", 0.005, 1.6e-2, "#2ca02c"),
    "AdamW, betas 0.9, 0.95": _adamw(0.9, 0.95, "#1f77b4"),
    "AdamW, betas 0.9, 0.99": _adamw(0.9, 0.99, "#17becf"),
    "AMSGrad, betas 0.9, 0.95": _adamw(0.9, 0.95, "#9467bd", amsgrad=True),
    "ADana": RareTokenOptimizer("adana", 0.002, 1e-3, "#d62728"),
    "Dana-Star": RareTokenOptimizer("dana-star", 0.002, 1.6e-2, "#ff7f0e"),
}
"""Optimizers by name."""
LR_POWERS = (-2, 0, 2)
"""Powers of two of the learning rates on the language, in units of a contender's own."""
SHOWN = (0.1, 0.03, 0.01, 0.004, 0.002)
"""Frequencies of the printed table, the nearest tokens to them."""


def compute(
    corpus: Corpus,
    *,
    steps: int = 20_000,
    rows: int = 64,
    tokens: int = 16,
    rarest: float = 0.002,
    language_steps: int = 4000,
    documents: int = 1,
    seeds: int = 3,
    seed: int = 0,
) -> Study:
    """Bias of rare tokens under all contenders.

    Args:
        corpus: the language, whose true probabilities are known.
        steps, rows, tokens, rarest, seed: of the table; `rarest` is the least frequency.
        language_steps, documents: training on the language; documents per step.
        seeds: of the language model, at the best learning rate; its choice uses the first one.
    """
    for name, value, least in (("steps", steps, 100), ("rows", rows, 2), ("language-steps", language_steps, 10)):
        if value < least:
            raise UserError(f"--{name} {value}: at least {least} are needed")
    if seeds < 2:
        raise UserError(f"--seeds {seeds}: at least 2 are needed for an interval")
    f = geometric_frequencies(rarest, tokens)
    arrays: dict[str, np.ndarray] = {"frequency": f}
    shown = [int(np.abs(np.log(f / x)).argmin()) for x in SHOWN]
    table, language = [], []
    for name, contender in CONTENDERS.items():
        ratio = table_bias(contender.at(contender.table_lr), f, steps=steps, rows=rows, seed=seed)
        arrays[f"table {name}"] = ratio
        theory = _theory(contender, f, 0.95 * steps)
        if theory is not None:
            arrays[f"theory {name}"] = theory
        mean, width = mean_and_interval(ratio)
        expected = ["" if theory is None else f" ({theory[i]:.2f})" for i in shown]
        cells = [f"{mean[i]:.2f} ±{width[i]:.2f}{e}" for i, e in zip(shown, expected, strict=True)]
        table.append({"p / f (theory)": name, **{f"f = {f[i]:.2g}": x for i, x in zip(shown, cells, strict=True)}})
    held_out = HeldOut.of(corpus)
    true = held_out.frequencies
    for name, contender in CONTENDERS.items():
        best, lr, ratios = _on_language(corpus, held_out, contender, language_steps, documents, seeds)
        arrays[f"language {name}"] = ratios
        mean, width = mean_and_interval(ratios)
        columns = {f"{x:.2g}": f"{m:.2f} ±{w:.2f}" for x, m, w in zip(true, mean, width, strict=True)}
        language.append({"p / f at f =": name, **columns, "loss": best, "lr": lr})
    findings = {
        f"a table of logits, after {steps} steps": table,
        f"words of the language, after {language_steps} steps": language,
    }
    arrays["word_frequency"] = true
    settings = {"steps": steps, "rows": rows, "tokens": tokens, "rarest": rarest, "seed": seed, "seeds": seeds}
    more = {"words": corpus.words, "language_steps": language_steps, "documents": documents}
    return Study("rare-tokens", arrays, {**settings, **more}, findings, draw_figure)


def _theory(contender: RareTokenOptimizer, f: np.ndarray, t: float) -> np.ndarray | None:
    """p / f at rest; of logarithmic time as if its memory stood still at time t. None: no closed form."""
    if contender.opt in ("sgd", "muon"):
        return np.ones_like(f)
    if contender.opt == "adana":
        return equilibrium(f, t / 8, [math.inf, 1.0], [1.0, (1 + t) ** 0.15 + 1]) / f
    if contender.opt == "adamw" and "amsgrad" not in contender.settings:
        memories = [-1 / math.log(beta) for beta in contender.settings["betas"]]
        return equilibrium(f, memories[1], [memories[1] / memories[0]]) / f
    return None


def _on_language(
    corpus: Corpus, held_out: HeldOut, contender: RareTokenOptimizer, steps: int, documents: int, seeds: int
) -> tuple[float, str, np.ndarray]:
    """Least loss, the learning rate that has it (marked at an edge of the grid), and p / f of all seeds there."""
    run = partial(language_bias, corpus, held_out, steps=steps, documents=documents)
    lrs = [contender.language_lr * 2.0**k for k in LR_POWERS]
    trials = [run(contender.at(lr)) for lr in lrs]
    place = int(np.argmin([loss if math.isfinite(loss) else math.inf for loss, _ in trials]))
    results = [trials[place], *(run(contender.at(lrs[place]), seed=seed) for seed in range(1, seeds))]
    losses, ratios = zip(*results, strict=True)
    edge = " (edge)" if place in (0, len(lrs) - 1) else ""
    return float(np.mean(losses)), f"{lrs[place]:g}{edge}", np.stack(ratios)


def draw_figure(study: Study) -> Figure:
    """The two formulas; the table, measured and predicted; the words of the language."""
    a = study.arrays
    figure, axes = canvas(1, 3, 5.2, 4.4)
    formulas, table, language = axes[0]
    kappa = np.geomspace(0.02, 20, 400)
    formulas.plot(kappa, periodic_ratio(kappa), color="#9ecae1", label="periodic arrivals")
    formulas.plot(kappa, random_ratio(kappa), color="#08306b", label="random arrivals: 1 - kappa / 2")
    title, x = "Adam without momentum, one rare token", "gap between arrivals / memory of v"
    label(formulas, title, x, "p / f at rest", "lower left", "x")
    for name, contender in CONTENDERS.items():
        _points(table, a["frequency"], a[f"table {name}"], contender.color, name)
        if f"theory {name}" in a and contender.opt not in ("sgd", "muon"):
            table.plot(a["frequency"], a[f"theory {name}"], color=contender.color, lw=1)
        _points(language, a["word_frequency"], a[f"language {name}"], contender.color, name)
    label(table, "a table of logits (dots; lines: closed form)", "frequency f", "p / f", log="x", ylim=(0, 1.4))
    title = "a generated language, learning rates tuned"
    label(language, title, "frequency of the word", "p / f, held-out documents", log="x")
    for panel in (table, language):
        panel.axhline(1, color="black", lw=0.8)
    language.legend(loc="lower right", fontsize=8)
    return figure


def _points(panel: Axes, x: np.ndarray, values: np.ndarray, color: str, name: str) -> None:
    mean, width = mean_and_interval(values)
    panel.errorbar(x, mean, width, color=color, marker="o", ms=3.5, lw=0, elinewidth=1, label=name)


def geometric_frequencies(rarest: float, tokens: int) -> np.ndarray:
    """Frequencies f_0 > f_1 > ... that fall by one factor and add up to 1, the last one about `rarest`.

    UserError: `rarest` is not between 0 and 1 / tokens.
    """
    if tokens < 2 or not 0 < rarest < 1 / tokens:
        raise UserError(f"rarest = {rarest:g} of {tokens} tokens: must be above 0 and below 1 / tokens")
    powers = np.arange(tokens)[::-1]
    factor = brentq(lambda x: rarest * (x**powers).sum() - 1, 1.0, 1 / rarest, xtol=1e-15)
    f = rarest * float(factor) ** powers  # pyright: ignore[reportArgumentType]
    return f / f.sum()


def table_bias(build: Build, frequencies: np.ndarray, *, steps: int, rows: int, seed: int = 0) -> np.ndarray:
    """p / f, averaged over the last tenth of the run: float64 [rows, tokens].

    The logits start at log f: what is measured is where the optimizer leads them from the truth. Rows are independent
    for element-wise optimizers.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.stack([torch.randperm(len(frequencies), generator=generator) for _ in range(rows)])
    truth = torch.tensor(frequencies)[order].float()
    logits = truth.log().requires_grad_()
    optimizer = build([logits])
    first, seen = steps - steps // 10, torch.zeros(rows, len(frequencies), dtype=torch.float64)
    drawn = torch.empty(rows, 0)
    for step in range(steps):
        if step % _CHUNK == 0:
            drawn = torch.multinomial(truth, _CHUNK, replacement=True, generator=generator)
        probabilities = logits.detach().softmax(1)
        if step >= first:
            seen += probabilities
        logits.grad = probabilities.scatter_add(1, drawn[:, step % _CHUNK, None], torch.full((rows, 1), -1.0))
        optimizer.step()
    ratio = seen / (steps // 10) / truth
    return torch.empty_like(ratio).scatter_(1, order, ratio).numpy()


class Corpus(Protocol):
    """What is needed of a language; `danalab.data.sources.synthetic.Language` is one."""

    @property
    def words(self) -> int: ...  # their token ids come first, by frequency
    @property
    def vocabulary(self) -> list[str]: ...
    def documents(self, first: int, count: int) -> np.ndarray: ...
    def probabilities(self, document: np.ndarray) -> np.ndarray: ...


class LastToken(nn.Module):
    """The next token from the last one, through `width` dimensions: the smallest model with an embedding and a head."""

    def __init__(self, tokens: int, width: int):
        super().__init__()
        self.embedding = nn.Embedding(tokens + 1, width)  # the last row is the start of a document
        self.head = nn.Linear(width, tokens, bias=False)

    def forward(self, documents: torch.Tensor) -> torch.Tensor:
        """Logits [documents, length, tokens] of token ids [documents, length]."""
        start = torch.full_like(documents[:, :1], self.embedding.num_embeddings - 1)
        return self.head(self.embedding(torch.cat([start, documents[:, :-1]], dim=1)))


@dataclass(frozen=True)
class HeldOut:
    """Documents that no model is trained on, and the truth about them."""

    text: np.ndarray
    """Token ids [documents, length]."""
    truth: np.ndarray
    """True probabilities of the next token [documents, length, tokens]."""
    words: int

    @classmethod
    def of(cls, corpus: Corpus, documents: int = 32) -> HeldOut:
        """The first documents of a corpus."""
        text = corpus.documents(0, documents)
        truth = np.stack([corpus.probabilities(document)[:-1, :-1] for document in text])
        return cls(text, truth, corpus.words)

    @property
    def bins(self) -> list[tuple[int, int]]:
        """Bins of words by rank (from 0, end exclusive), each about four times as wide as the one before."""
        edges = [0]
        while edges[-1] < self.words:
            edges.append(min(self.words, 4 * edges[-1] + 4))
        return list(itertools.pairwise(edges))

    @property
    def frequencies(self) -> np.ndarray:
        """Mean frequency of a word of each bin, per token."""
        mean = self.truth.mean((0, 1))
        return np.asarray([mean[a:b].mean() for a, b in self.bins])


def language_bias(
    corpus: Corpus, held_out: HeldOut, build: Build, *, steps: int, documents: int, width: int = 32, seed: int = 0
) -> tuple[float, np.ndarray]:
    """Train `LastToken` for one pass over `steps * documents` documents, the learning rate falling to 0 in a line.

    `seed` draws the weights, and the part of the corpus that is read. Returns the cross-entropy on the held-out
    documents against the true distribution [nats/token], and the mean probability of the words of each bin under the
    model over that under the truth.
    """
    torch.manual_seed(seed)
    model = LastToken(len(corpus.vocabulary), width)
    # Without names: Muon orthogonalises embedding and head, too, which in language models it leaves to AdamW.
    optimizer = build(list(model.parameters()))
    scheduler = lr_scheduler(optimizer, get_schedule("linear", steps, steps // 50))
    first = len(held_out.text) + seed * steps * documents
    text = torch.empty(0)
    for step in range(steps):
        if step % _CHUNK == 0:
            text = torch.from_numpy(corpus.documents(first + step * documents, min(_CHUNK, steps - step) * documents))
        part = text[step % _CHUNK * documents :][:documents]
        loss = nn.functional.cross_entropy(model(part).flatten(0, 1), part.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    with torch.no_grad():
        log_p = model(torch.from_numpy(held_out.text)).double().log_softmax(-1).numpy()
    ours, true = np.exp(log_p).mean((0, 1)), held_out.truth.mean((0, 1))
    ratio = np.asarray([ours[a:b].sum() / true[a:b].sum() for a, b in held_out.bins])
    return -float((held_out.truth * log_p).sum(-1).mean()), ratio


def mean_and_interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean over the first axis, and half-width of its 95% interval (Student)."""
    n = len(values)
    return values.mean(0), stdtrit(n - 1, 0.975) * values.std(0, ddof=1) / math.sqrt(n)
