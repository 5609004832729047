"""Sparse gradients: a mixture of experts on power-law random features under ADana and Dana-Star, each on its own clock.

Expert i is in a batch with probability P_i = 1 - (1 - p_i)^B. Without tau, active steps are inflated by P_i^(-1/2) and
t^(1 - kappa) counts wall steps; with it, expert i follows the one-expert curve on the clock P_i t.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure

from danalab.colors import optimizer_color
from danalab.errors import UserError
from danalab.theory.problem.model import PLRF
from danalab.theory.problem.spectra import check_memory, draw
from danalab.theory.recording import geometric_times
from danalab.theory.simulation.adaptive import Racer, Stream, race, zipf
from danalab.theory.studies.study import LABELS, Study, canvas, loglog

_ORDER = ("adana", "dana-mk4", "dana-star-mk4", "adam")


def compute(model: PLRF, **settings: Any) -> Study:
    """`moe(model, **settings)` as a study."""
    result = moe(model, **settings)
    arrays = {"t": result.t, "kappa": result.kappas, "activity": result.activity, "probabilities": result.probabilities}
    arrays.update({f"total_{n}": result.total(n) for n in _ORDER}, limit=result.limit)
    arrays.update(
        {f"risk_{n}": np.exp(np.log(result.risk[n]).mean(0)) for n in _ORDER}, tau=result.tau.mean(-1).mean(0)
    )
    findings = {}
    for i, kappa in enumerate(result.kappas):
        for name in _ORDER[:-1]:
            findings[f"{LABELS[name]}, kappa = {kappa:g}: total risk"] = float(arrays[f"total_{name}"][-1, i])
        findings[f"slope of log tau on log P, kappa = {kappa:g}"] = result.tau_slope(i)
    findings["Adam: total risk"] = float(arrays["total_adam"][-1, 0])
    return Study("moe", arrays, {**dataclasses.asdict(model), **settings}, findings)


def draw_figure(study: Study) -> Figure:
    """Total risk; then one expert a line, ADana and Dana-Star-MK4 against the expert's own clock P_i t."""
    a = study.arrays
    figure, axes = canvas(1, 3, 5.0, 4.3)
    total, left, right = axes[0]
    middle = len(a["kappa"]) // 2
    styles = ["-", "--", ":", "-."]
    for name in _ORDER:
        for i in range(a[f"total_{name}"].shape[1]):
            kappa = "" if name == "adam" else f", kappa = {a['kappa'][i]:g}"
            style = "-" if name == "adam" else styles[i % 4]
            if name == "dana-mk4" and i > 0:
                continue  # the same as ADana wherever ADana is stable
            total.plot(
                a["t"] + 1, a[f"total_{name}"][:, i], color=optimizer_color(name), ls=style, label=LABELS[name] + kappa
            )
    loglog(total, "total risk, geometric mean over draws", "steps t + 1", "population risk P")
    total.set_ylim(0.5 * float(a["limit"].mean()), 1e5)
    total.legend(loc="upper left", fontsize=8, ncols=2)
    colors = mpl.colormaps["plasma"]
    shade = np.log(a["activity"] / a["activity"].min()) / np.log(a["activity"].max() / a["activity"].min())
    for panel, name in ((left, "adana"), (right, "dana-star-mk4")):
        for i, activity in enumerate(a["activity"]):
            panel.plot(
                np.maximum(a["t"] * activity, 0.1),
                a[f"risk_{name}"][:, middle, i],
                color=colors(0.92 * shade[i]),
                lw=1.2,
            )
        loglog(
            panel,
            f"{LABELS[name]}, kappa = {a['kappa'][middle]:g}",
            "active steps P_i t of the expert",
            "risk of the expert",
        )
        panel.set_ylim(0.5 * float(a["limit"].mean()), 1e3)
        panel.set_xlim(left=0.1)
    lowest, highest = float(a["activity"].min()), float(a["activity"].max())
    norm = LogNorm(lowest, highest)
    cut = LinearSegmentedColormap.from_list("cut", colors(np.linspace(0, 0.92, 64)))
    bar = figure.colorbar(ScalarMappable(norm, cut), ax=right, label="activity P_i", shrink=0.85)
    ticks = [x for x in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0) if lowest <= x <= highest]
    bar.set_ticks(ticks, labels=[f"{x:g}" for x in ticks])
    bar.minorticks_off()
    return figure


def moe(
    model: PLRF | None = None,
    *,
    experts: int = 32,
    zeta: float = 1.5,
    batch: int = 8,
    steps: int = 10_000,
    kappas: Sequence[float] = (0.5, 0.75, 1.0),
    lr: float = 0.03,
    clipsnr: float = 2.0,
    delta: float = 8.0,
    noise: float = 0.0,
    seeds: int = 3,
    times: np.ndarray | None = None,
) -> MoE:
    """Run ADana, Dana-MK4, Dana-Star-MK4 and Adam on the same expert-routed samples.

    Args:
        model: default alpha = 1, beta = 0.3, v = 200, d = 50.
        experts, zeta: expert probabilities p_i proportional to i^-zeta.
        batch: samples per step; the loss is averaged over all of them.
        seeds: draws of W and of the stream.
        times: step counts to record; default powers of 1.3.
    Raises:
        UserError: bad sizes, kappa outside [0, 1], a problem that does not fit into memory.
    """
    model = PLRF(1.0, 0.3, 200, 50) if model is None else model
    grid = np.asarray(kappas, float)
    if not len(grid) or grid.min() < 0 or grid.max() > 1:
        raise UserError(f"kappas must lie between 0 and 1, not {grid.tolist()}")
    if seeds < 1:
        raise UserError(f"seeds = {seeds}: at least one is needed")
    at = geometric_times(steps, 1.3) if times is None else np.asarray(times, dtype=np.int64)
    needed = 4.0 * experts * model.d * len(grid) * (13 + 2 * len(at))
    check_memory(needed + 16.0 * model.v * model.d, "the MoE sweep", "take fewer experts, kappas or parameters")
    probabilities = np.asarray(zipf(experts, zeta))
    clip = {"clipsnr": clipsnr}
    shared = {"kappa": grid, "lr": lr, "delta": delta}
    contenders = {
        "adana": Racer("adana", shared),
        "dana-mk4": Racer("dana-mk4", {**shared, **clip}),
        "dana-star-mk4": Racer("dana-star-mk4", {**shared, **clip}),
        "adam": Racer("adam", {"lr": lr}),
    }
    outcomes, limits = [], []
    for seed in range(seeds):
        problem = draw(model, seed)
        stream = Stream(batch, tuple(probabilities.tolist()), noise, seed=seed)
        outcomes.append(race(problem, contenders, at, stream, ranks=np.arange(model.d)))
        limits.append(problem.spectrum.limit)
    risk = {name: np.stack([o[name].risk for o in outcomes]) for name in contenders}
    tau = np.stack([np.asarray(o["dana-star-mk4"].tau) for o in outcomes])
    activity = 1 - (1 - probabilities) ** batch
    return MoE(at.astype(float), grid, probabilities, activity, risk, tau, np.asarray(limits), model.initial_risk)


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
