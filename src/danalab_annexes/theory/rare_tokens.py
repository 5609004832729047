"""Rare tokens: the probability that an optimizer gives them at rest, in closed form, on a table, and on a language.

The table has one row of logits for each context; each row has the same frequencies in its own random order, and draws
one token a step. The language model is an embedding of the last token and a head, both learned.

The fixed point of Adam-like optimizers on a softmax: the probability p of a token against its frequency f.

The gradient of a token's logit is p - 1 when the token arrives and p otherwise; f is the chance that it arrives in a
step. An optimizer that divides by sqrt(v) rests where E[m / sqrt(v)] = 0, not where E[m] = 0: v is large right after an
arrival, when the gradient is negative, and small long after, when it is positive. With kappa = 1 / (f tau), the mean
gap between arrivals in units of the memory tau = 1 / (1 - beta2) of v, m = g, and S the sum of e^(-age / tau),

    periodic arrivals   p / f = kappa / (2 (e^(kappa / 2) - 1))  = 1 - kappa / 4 + ...
    random arrivals     p / f = E[(1 + S)^(-1/2)] / E[S^(-1/2)]  = 1 - kappa / 2, and 0 for kappa >= 2

The last equality follows from the stationary law of S: E[S^(-1/2)] kappa / 2 = E[S^(-1/2)] - E[(1 + S)^(-1/2)]. Three
things are missing in both. Momentum with a memory of tau / r mixes old gradients into m. The gradients p between
arrivals are a part of v, so that p > 0 even for kappa >= 2. And probabilities add up to 1: since a common shift of all
logits changes nothing, the optimizer rests where E[m / sqrt(v)] is one number c for all tokens, and what rare tokens
lose, frequent ones gain. With all three, for each token,

    (1 - f) p / (1 - p) int u^(-1/2) w(u) du - f int u^(-1/2) k_r(u) w(u) du = c,          c such that sum p = 1
    w(u) = exp(-Ein(u) f tau - u tau p^2 / (1 - p)^2)          Ein(u) = int_0^u (1 - e^-y) / y dy
    k_r(u) = r int_0^1 y^(r-1) e^(-u y) dy                     (e^-u without momentum)

Valid for a learning rate so small that p does not move between arrivals. Own derivation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.optimize import brentq
from scipy.special import exp1, gammainc, gammaln, stdtrit
from torch import nn

from danalab.data.sources.synthetic import Language
from danalab.errors import UserError
from danalab.optim import build_optimizer
from danalab.optim.schedules import get_schedule, lr_scheduler
from danalab_annexes.theory.studies import RareTokensFlags
from danalab_annexes.theory.study import Study, canvas, label

_U = np.exp(np.linspace(-80.0, 60.0, 3501))  # nodes of the integrals, even in log u
_EIN = np.where(_U < 1e-3, _U - _U**2 / 4 + _U**3 / 18, exp1(np.maximum(_U, 1e-3)) + np.log(_U) + np.euler_gamma)


def periodic_ratio(kappa: npt.ArrayLike) -> np.ndarray:
    """p / f of one rare token that arrives exactly every kappa tau steps; no momentum."""
    half = np.asarray(kappa, float) / 2
    return half / np.expm1(half)


def random_ratio(kappa: npt.ArrayLike) -> np.ndarray:
    """p / f of one rare token that arrives at random; no momentum, tau large."""
    return np.maximum(1 - np.asarray(kappa, float) / 2, 0.0)


def equilibrium(
    frequencies: npt.ArrayLike, tau: float, memories: Sequence[float] = (math.inf,), weights: Sequence[float] = (1.0,)
) -> np.ndarray:
    """Probabilities at which an Adam-like optimizer rests, for tokens that arrive at random with these frequencies (sum
    1).

    A step draws one token. `tau`: memory of the second moment [steps]. The update has parts with `weights`, as in g +
    alpha m; `memories` are r of each: memory of v over the memory of that part; inf: the gradient itself.
    """
    f = np.asarray(frequencies, float)
    arrivals = _U**0.5 * np.exp(-np.outer(f * tau, _EIN))
    pushes = np.average([_kernel(r, _U) for r in memories], axis=0, weights=weights)

    def drift(odds: np.ndarray) -> np.ndarray:
        w = arrivals * np.exp(-np.outer(tau * odds**2, _U))
        return (1 - f) * odds * w.sum(axis=1) - f * (w @ pushes)

    def probabilities(c: float) -> np.ndarray:
        low, high = np.full(f.shape, -60.0), np.full(f.shape, 20.0)
        for _ in range(60):  # drift grows with p: bisection in log(p / (1 - p))
            middle = (low + high) / 2
            above = drift(np.exp(middle)) > c
            low, high = np.where(above, low, middle), np.where(above, middle, high)
        return 1 / (1 + np.exp(-low))

    top = float(np.abs(drift(f / (1 - f))).max()) + 1e-30
    while probabilities(top).sum() < 1:
        top *= 2
    c = brentq(lambda c: probabilities(c).sum() - 1, -top, top, xtol=1e-12 * top)
    return probabilities(float(c))  # pyright: ignore[reportArgumentType]


def _kernel(r: float, u: np.ndarray) -> np.ndarray:
    """k_r(u)."""
    if math.isinf(r):
        return np.exp(-u)
    return np.where(u < 1e-6, 1.0, np.exp(gammaln(r + 1) - r * np.log(np.maximum(u, 1e-6))) * gammainc(r, u))


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


def compute(p: RareTokensFlags) -> Study:
    """Bias of rare tokens under all contenders; the first seed of the language model chooses its learning rate."""
    for name, value, least in (("steps", p.steps, 100), ("rows", p.rows, 2), ("language-steps", p.language_steps, 10)):
        if value < least:
            raise UserError(f"--{name} {value}: at least {least} are needed")
    if p.seeds < 2:
        raise UserError(f"--seeds {p.seeds}: at least 2 are needed for an interval")
    f = geometric_frequencies(p.rarest, p.tokens)
    arrays: dict[str, np.ndarray] = {"frequency": f}
    shown = [int(np.abs(np.log(f / x)).argmin()) for x in SHOWN]
    table, language = [], []
    for name, contender in CONTENDERS.items():
        ratio = table_bias(contender.at(contender.table_lr), f, steps=p.steps, rows=p.rows, seed=p.seed)
        arrays[f"table {name}"] = ratio
        theory = _theory(contender, f, 0.95 * p.steps)
        if theory is not None:
            arrays[f"theory {name}"] = theory
        mean, width = mean_and_interval(ratio)
        expected = ["" if theory is None else f" ({theory[i]:.2f})" for i in shown]
        cells = [f"{mean[i]:.2f} ±{width[i]:.2f}{e}" for i, e in zip(shown, expected, strict=True)]
        table.append({"p / f (theory)": name, **{f"f = {f[i]:.2g}": x for i, x in zip(shown, cells, strict=True)}})
    corpus = Language(words=p.words, document_tokens=64)
    held_out = HeldOut.of(corpus)
    true = held_out.frequencies
    for name, contender in CONTENDERS.items():
        best, lr, ratios = _on_language(corpus, held_out, contender, p.language_steps, p.documents, p.seeds)
        arrays[f"language {name}"] = ratios
        mean, width = mean_and_interval(ratios)
        columns = {f"{x:.2g}": f"{m:.2f} ±{w:.2f}" for x, m, w in zip(true, mean, width, strict=True)}
        language.append({"p / f at f =": name, **columns, "loss": best, "lr": lr})
    findings = {
        f"a table of logits, after {p.steps} steps": table,
        f"words of the language, after {p.language_steps} steps": language,
    }
    arrays["word_frequency"] = true
    return Study("rare-tokens", arrays, p.settings(), findings, draw_figure)


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
    corpus: Language, held_out: HeldOut, contender: RareTokenOptimizer, steps: int, documents: int, seeds: int
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
    def of(cls, corpus: Language, documents: int = 32) -> HeldOut:
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
    corpus: Language, held_out: HeldOut, build: Build, *, steps: int, documents: int, width: int = 32, seed: int = 0
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
