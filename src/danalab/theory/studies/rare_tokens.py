"""Rare tokens: the probability that an optimizer gives them at rest, in closed form, on a table, and on a language."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from danalab.errors import UserError
from danalab.theory.dynamics.rare_tokens import equilibrium, periodic_ratio, random_ratio
from danalab.theory.simulation.rare_tokens import (
    Corpus,
    HeldOut,
    Trained,
    geometric_frequencies,
    language_bias,
    mean_and_interval,
    table_bias,
)
from danalab.theory.studies.study import Study, canvas


@dataclass(frozen=True)
class Contender:
    """An optimizer of the study."""

    opt: str
    table_lr: float
    """So small that a token's probability hardly moves between its arrivals."""
    language_lr: float
    """Middle of the grid of learning rates."""
    color: str
    settings: dict[str, Any] = field(default_factory=dict)


def _adamw(beta1: float, beta2: float, color: str, **settings: Any) -> Contender:
    return Contender("adamw", 0.005, 8e-3, color, {"betas": (beta1, beta2), "weight_decay": 0.0, **settings})


CONTENDERS = {
    "SGD": Contender("sgd", 0.1, 1.0, "#7f7f7f"),
    "Muon": Contender("muon", 0.005, 1.6e-2, "#2ca02c"),
    "AdamW, betas 0.9, 0.95": _adamw(0.9, 0.95, "#1f77b4"),
    "AdamW, betas 0.9, 0.99": _adamw(0.9, 0.99, "#17becf"),
    "AMSGrad, betas 0.9, 0.95": _adamw(0.9, 0.95, "#9467bd", amsgrad=True),
    "ADana": Contender("adana", 0.002, 1e-3, "#d62728"),
    "Dana-Star": Contender("dana-star", 0.002, 1.6e-2, "#ff7f0e"),
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
        steps, rows, tokens, rarest: of the table; `rarest` is the least frequency.
        language_steps, documents: training on the language; documents per step.
        seeds: of the language model, at the best learning rate; its choice uses the first one.
        seed: of the table.
    Raises:
        UserError: too few steps, rows or seeds for an interval.
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
        trained = Trained(contender.opt, contender.table_lr, contender.settings)
        ratio = table_bias(trained, f, steps=steps, rows=rows, seed=seed)
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
    return Study("rare-tokens", arrays, {**settings, **more}, findings)


def _theory(contender: Contender, f: np.ndarray, t: float) -> np.ndarray | None:
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
    corpus: Corpus, held_out: HeldOut, contender: Contender, steps: int, documents: int, seeds: int
) -> tuple[float, str, np.ndarray]:
    """Least loss, the learning rate that has it (marked at an edge of the grid), and p / f of all seeds there."""

    def run(lr: float, seed: int) -> Any:
        trained = Trained(contender.opt, lr, contender.settings)
        return language_bias(corpus, held_out, trained, steps=steps, documents=documents, seed=seed)

    lrs = [contender.language_lr * 2.0**k for k in LR_POWERS]
    trials = [run(lr, 0) for lr in lrs]
    place = int(np.argmin([x.loss if math.isfinite(x.loss) else math.inf for x in trials]))
    found = [trials[place], *(run(lrs[place], seed) for seed in range(1, seeds))]
    edge = " (edge)" if place in (0, len(lrs) - 1) else ""
    return float(np.mean([x.loss for x in found])), f"{lrs[place]:g}{edge}", np.stack([x.ratio for x in found])


def draw_figure(study: Study) -> Figure:
    """The two formulas; the table, measured and predicted; the words of the language."""
    a = study.arrays
    figure, axes = canvas(1, 3, 5.2, 4.4)
    formulas, table, language = axes[0]
    kappa = np.geomspace(0.02, 20, 400)
    formulas.plot(kappa, periodic_ratio(kappa), color="#9ecae1", label="periodic arrivals")
    formulas.plot(kappa, random_ratio(kappa), color="#08306b", label="random arrivals: 1 - kappa / 2")
    formulas.set(xscale="log", xlabel="gap between arrivals / memory of v", ylabel="p / f at rest")
    formulas.set_title("Adam without momentum, one rare token")
    formulas.legend(loc="lower left")
    for name, contender in CONTENDERS.items():
        _points(table, a["frequency"], a[f"table {name}"], contender.color, name)
        if f"theory {name}" in a and contender.opt not in ("sgd", "muon"):
            table.plot(a["frequency"], a[f"theory {name}"], color=contender.color, lw=1)
        _points(language, a["word_frequency"], a[f"language {name}"], contender.color, name)
    table.set(xscale="log", xlabel="frequency f", ylabel="p / f", ylim=(0, 1.4))
    table.set_title("a table of logits (dots; lines: closed form)")
    language.set(xscale="log", xlabel="frequency of the word", ylabel="p / f, held-out documents")
    language.set_title("a generated language, learning rates tuned")
    for panel in (table, language):
        panel.axhline(1, color="black", lw=0.8)
    language.legend(loc="lower right", fontsize=8)
    return figure


def _points(panel: Axes, x: np.ndarray, values: Sequence[Any] | np.ndarray, color: str, label: str) -> None:
    mean, width = mean_and_interval(values)
    panel.errorbar(x, mean, width, color=color, marker="o", ms=3.5, lw=0, elinewidth=1, label=label)
