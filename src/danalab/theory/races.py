"""Optimizers raced on one stream of samples for every kappa: the hummingbird, and a mixture of experts.

Hummingbird: risk against steps for kappa from 0 to 1, and final risk against kappa. Small kappa (much momentum) falls
fastest and then diverges, the earlier the smaller kappa is. Clipping the signal-to-noise ratio (Dana-MK4) prevents it.

Mixture: expert i is in a batch with probability P_i = 1 - (1 - p_i)^B. Without tau, active steps are inflated by
P_i^(-1/2) and t^(1 - kappa) counts wall steps; with it, expert i follows the one-expert curve on the clock P_i t.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize
from matplotlib.figure import Figure

from danalab.colors import ink, optimizer_color, shades
from danalab.errors import UserError
from danalab.optimizer_facts import DELTA
from danalab.theory.curve import geometric_times
from danalab.theory.problem import PLRF, check_memory, draw, model_of
from danalab.theory.race import Racer, race, zipf
from danalab.theory.study import LABELS, Study, canvas, label
from danalab.theory_studies import HummingbirdFlags, MoEFlags

SWEPT = ("adana", "dana-mk4", "dana-star-mk4")
"""Optimizers that are run for every kappa."""


def hummingbird(
    model: PLRF | None = None, *, optimizers: Sequence[str] = SWEPT, **settings: Any
) -> Hummingbird:
    """Run ADana, Dana-MK4 and Dana-Star-MK4 for all kappas, and Adam and SGD, on the same samples.

    Args:
        model: by default that of `settings`, where the shape shows after 16,000 steps.
        settings: fields of `HummingbirdFlags`. Adam has the family's `lr`, SGD min(1, batch / trace) / 2. With
            several experts (MoE-PLRF) the risk is the mean under their probabilities.
    Raises:
        UserError: kappa outside [0, 1], sizes that do not fit into memory, negative noise, unknown optimizer.
    """
    p = HummingbirdFlags(**settings)
    model = model_of(p) if model is None else model
    kappas = np.linspace(0, 1, 11) if p.kappas is None else p.kappas
    grid, contenders = _family(optimizers, kappas, p.lr, p.delta, p.clipsnr)
    contenders["adam"] = ("adam", {"lr": p.lr})
    contenders["sgd"] = ("sgd", {"lr": 0.5 * min(1.0, p.batch / model.trace)})
    needed = 4.0 * 4 * len(grid) * len(optimizers) * p.experts * model.d
    check_memory(
        needed + 16.0 * model.v * model.d,
        "the hummingbird sweep",
        "take a smaller model, fewer experts or kappas",
    )
    probabilities, times = zipf(p.experts, p.zeta), geometric_times(p.steps)
    problem = draw(model, p.seed)
    stream: dict[str, Any] = {
        "batch": p.batch,
        "probabilities": probabilities,
        "noise": p.noise,
        "seed": p.seed,
    }
    outcome = race(problem, contenders, times, **stream)
    risk = {name: risk @ np.asarray(probabilities) for name, (risk, _) in outcome.items()}
    return Hummingbird(times.astype(float), grid, risk, problem.spectrum.limit, problem.spectrum.initial_risk)


@dataclass(frozen=True)
class Hummingbird:
    """Results of `hummingbird`."""

    t: np.ndarray
    """Steps."""
    kappas: np.ndarray
    risk: dict[str, np.ndarray]
    """Optimizer -> [times, kappas]; "adam" and "sgd" have one column."""
    limit: float
    initial: float


def _family(
    names: Sequence[str], kappas: Sequence[float] | np.ndarray, lr: float, delta: float, clipsnr: float
) -> tuple[np.ndarray, dict[str, Racer]]:
    """(kappas, the members `names` of the Dana family for each of them)."""
    grid = np.asarray(kappas, float)
    if not len(grid) or grid.min() < 0 or grid.max() > 1:
        raise UserError(f"kappas must lie between 0 and 1, not {grid.tolist()}")
    shared = {"kappa": grid, "lr": lr, "delta": delta}
    clipped = {**shared, "clipsnr": clipsnr}
    return grid, {name: (name, clipped if name.endswith("mk4") else shared) for name in names}


def hummingbird_study(p: HummingbirdFlags) -> Study:
    """`hummingbird` as a study."""
    result = hummingbird(**p.settings())
    limits = {"limit": np.asarray(result.limit), "initial": np.asarray(result.initial)}
    risks = {f"risk_{name}": risk for name, risk in result.risk.items()}
    findings: dict[str, Any] = {"limit risk": result.limit, "initial risk": result.initial}
    for name in (*SWEPT, "adam", "sgd"):
        final = result.risk[name][-1]
        findings[f"{LABELS[name]}: best final risk"] = float(final.min())
        if len(final) > 1:
            findings[f"{LABELS[name]}: best kappa"] = float(result.kappas[final.argmin()])
    arrays = {"t": result.t, "kappa": result.kappas, **limits, **risks}
    return Study("hummingbird", arrays, p.settings(), findings, _draw_hummingbird)


def _draw_hummingbird(study: Study) -> Figure:
    """Three panels of curves coloured by kappa, one of final risks."""
    a, p = study.arrays, study.parameters
    figure, axes = canvas(4)
    colors = LinearSegmentedColormap.from_list("kappa", shades(64))
    low, high = float(a["limit"]) * 0.7, 10.0
    last = axes[-1]
    for panel, name in zip(axes, SWEPT, strict=False):
        for i, kappa in enumerate(a["kappa"]):
            panel.plot(a["t"] + 1, a[f"risk_{name}"][:, i], color=colors(kappa), lw=1.4)
        panel.plot(a["t"] + 1, a["risk_adam"][:, 0], color=ink(), ls="--", lw=1.6, label="Adam")
        panel.plot(
            a["t"] + 1, a["risk_sgd"][:, 0], color=optimizer_color("sgd"), ls="-.", lw=1.4, label="SGD"
        )
        panel.axhline(float(a["limit"]), color=ink(), lw=0.8, ls=":", label="limit risk")
        clip = f", clipsnr = {p['clipsnr']:g}" if name.endswith("mk4") else ""
        legend = "lower left" if panel is axes[0] else ""
        label(panel, LABELS[name] + clip, "steps t + 1", "population risk P", legend, ylim=(low, high))
        final = np.minimum(a[f"risk_{name}"][-1], high)
        last.plot(a["kappa"], final, color=optimizer_color(name), marker="o", ms=4, label=LABELS[name])
    figure.colorbar(
        ScalarMappable(Normalize(0, 1), colors), ax=axes[:-1], label="kappa", shrink=0.6, aspect=40
    )
    last.axhline(a["risk_adam"][-1, 0], color=ink(), ls="--", lw=1.4, label="Adam")
    title, y = "final risk (off the top: cut at 10)", f"risk after {int(a['t'][-1]):,} steps"
    label(last, title, "kappa", y, "upper right", "y", ylim=(low, high))
    return figure


def moe(model: PLRF | None = None, *, times: np.ndarray | None = None, **settings: Any) -> MoE:
    """Run ADana, Dana-MK4, Dana-Star-MK4 and Adam on the same expert-routed samples.

    Args:
        model: by default that of `settings`.
        times: step counts to record; default powers of 1.3.
        settings: fields of `MoEFlags`; the loss is averaged over all samples of a step.
    Raises:
        UserError: bad sizes, kappa outside [0, 1], a problem that does not fit into memory.
    """
    p = MoEFlags(**settings)
    model = model_of(p) if model is None else model
    grid, contenders = _family(SWEPT, p.kappas, p.lr, DELTA, p.clipsnr)
    contenders["adam"] = ("adam", {"lr": p.lr})
    if p.seeds < 1:
        raise UserError(f"seeds = {p.seeds}: at least one is needed")
    at = geometric_times(p.steps, 1.3) if times is None else np.asarray(times, dtype=np.int64)
    needed = 4.0 * p.experts * model.d * len(grid) * (13 + 2 * len(at))
    check_memory(
        needed + 16.0 * model.v * model.d, "the MoE sweep", "take fewer experts, kappas or parameters"
    )
    probabilities = zipf(p.experts, p.zeta)
    problems = [draw(model, seed) for seed in range(p.seeds)]
    how: dict[str, Any] = {"batch": p.batch, "probabilities": probabilities, "noise": p.noise}
    how["ranks"] = np.arange(model.d)
    outcomes = [race(problem, contenders, at, **how, seed=seed) for seed, problem in enumerate(problems)]
    risk = {name: np.stack([outcome[name][0] for outcome in outcomes]) for name in contenders}
    tau = np.stack([np.asarray(outcome["dana-star-mk4"][1]) for outcome in outcomes])
    limit, chance = np.asarray([problem.spectrum.limit for problem in problems]), np.asarray(probabilities)
    return MoE(
        at.astype(float), grid, chance, 1 - (1 - chance) ** p.batch, risk, tau, limit, model.initial_risk
    )


@dataclass(frozen=True)
class MoE:
    """Results of `moe`; risks are [seeds, times, kappas, experts], Adam's with one kappa."""

    t: np.ndarray
    kappas: np.ndarray
    probabilities: np.ndarray
    """p_i of the experts."""
    activity: np.ndarray
    """P_i = 1 - (1 - p_i)^B."""
    risk: dict[str, np.ndarray]
    tau: np.ndarray
    """Sorted tau of Dana-Star-MK4 over the d coordinates [seeds, times, kappas, experts, d]."""
    limit: np.ndarray
    """[seeds]"""
    initial: float

    def total(self, name: str) -> np.ndarray:
        """Risk under the experts' probabilities, geometric mean over seeds [times, kappas]."""
        return np.exp(np.mean(np.log(self.risk[name] @ self.probabilities), axis=0))

    def tau_slope(self, kappa: int) -> float:
        """d log(mean tau) / d log P over the experts at the last time, mean over seeds."""
        mean = np.log(self.tau[:, -1, kappa].mean(-1)).mean(0)
        return float(np.polyfit(np.log(self.activity), mean, 1)[0])


def moe_study(p: MoEFlags) -> Study:
    """`moe` as a study."""
    result = moe(**p.settings())
    arrays = {name: getattr(result, name) for name in ("t", "activity", "probabilities", "limit")}
    arrays |= {"kappa": result.kappas, "tau": result.tau.mean(-1).mean(0)}
    findings = {}
    for name in (*SWEPT, "adam"):
        arrays[f"total_{name}"] = result.total(name)
        arrays[f"risk_{name}"] = np.exp(np.log(result.risk[name]).mean(0))
    for i, kappa in enumerate(result.kappas):
        for name in SWEPT:
            findings[f"{LABELS[name]}, kappa = {kappa:g}: total risk"] = float(arrays[f"total_{name}"][-1, i])
        findings[f"slope of log tau on log P, kappa = {kappa:g}"] = result.tau_slope(i)
    findings["Adam: total risk"] = float(arrays["total_adam"][-1, 0])
    return Study("moe", arrays, p.settings(), findings, _draw_moe)


def _draw_moe(study: Study) -> Figure:
    """Total risk; then one line per expert, ADana and Dana-Star-MK4 against the expert's own clock P_i t."""
    a = study.arrays
    figure, (total, left, right) = canvas(3)
    middle, floor = len(a["kappa"]) // 2, 0.5 * float(a["limit"].mean())
    for name in (*SWEPT, "adam"):
        columns = (
            1 if name == "dana-mk4" else a[f"total_{name}"].shape[1]
        )  # it is ADana wherever ADana is stable
        for i in range(columns):
            kappa = "" if name == "adam" else f", kappa = {a['kappa'][i]:g}"
            style: dict[str, Any] = {
                "color": optimizer_color(name),
                "ls": ("-", "--", ":", "-.")[i % 4],
                "label": LABELS[name] + kappa,
            }
            total.plot(a["t"] + 1, a[f"total_{name}"][:, i], **style)
    title = "total risk, geometric mean over draws"
    label(total, title, "steps t + 1", "population risk P", ylim=(floor, 1e5))
    total.legend(loc="upper left", fontsize=8.5)
    colors = LinearSegmentedColormap.from_list("activity", shades(64))
    lowest, highest = float(a["activity"].min()), float(a["activity"].max())
    shade = np.log(a["activity"] / lowest) / np.log(highest / lowest)
    for panel, name in ((left, "adana"), (right, "dana-star-mk4")):
        for i, activity in enumerate(a["activity"]):
            clock = np.maximum(a["t"] * activity, 0.1)
            panel.plot(clock, a[f"risk_{name}"][:, middle, i], color=colors(shade[i]), lw=1.2)
        title = f"{LABELS[name]}, kappa = {a['kappa'][middle]:g}"
        x, y = "active steps P_i t of the expert", "risk of the expert"
        label(panel, title, x, y, ylim=(floor, 1e3), xlim=(0.1, None))
    norm = LogNorm(lowest, highest)
    bar = figure.colorbar(
        ScalarMappable(norm, colors), ax=[left, right], label="activity P_i", shrink=0.6, aspect=40
    )
    ticks = [x for x in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0) if lowest <= x <= highest]
    bar.set_ticks(ticks, labels=[f"{x:g}" for x in ticks])
    bar.minorticks_off()
    return figure
