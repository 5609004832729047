"""The hummingbird plot: risk against steps for kappa from 0 to 1 on one data stream, and final risk against kappa.

Small kappa (much momentum) falls fastest and then diverges, the earlier the smaller kappa is. Clipping the
signal-to-noise ratio (Dana-MK4) prevents the divergence.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from danalab.colors import optimizer_color
from danalab.errors import UserError
from danalab.theory.problem.model import PLRF
from danalab.theory.problem.spectra import check_memory, draw
from danalab.theory.recording import geometric_times
from danalab.theory.simulation.adaptive import Racer, Stream, race, zipf
from danalab.theory.studies.study import LABELS, Study, canvas, loglog

SWEPT = ("adana", "dana-mk4", "dana-star-mk4")
"""Optimizers that are run for every kappa."""


def compute(model: PLRF, **settings: Any) -> Study:
    """`hummingbird(model, **settings)` as a study."""
    result = hummingbird(model, **settings)
    arrays = {
        "t": result.t,
        "kappa": result.kappas,
        "limit": np.asarray(result.limit),
        "initial": np.asarray(result.initial),
    }
    arrays.update({f"risk_{name}": risk for name, risk in result.risk.items()})
    findings: dict[str, Any] = {"limit risk": result.limit, "initial risk": result.initial}
    for name in (*SWEPT, "adam", "sgd"):
        final = result.final(name)
        findings[f"{LABELS[name]}: best final risk"] = float(final.min())
        if len(final) > 1:
            findings[f"{LABELS[name]}: best kappa"] = float(result.kappas[final.argmin()])
    return Study("hummingbird", arrays, {**dataclasses.asdict(model), **settings}, findings)


def draw_figure(study: Study) -> Figure:
    """Three panels of curves coloured by kappa, one of final risks."""
    a, p = study.arrays, study.parameters
    figure, axes = canvas(2, 2, 5.4, 4.2)
    colors = mpl.colormaps["viridis"]
    low, high = float(a["limit"]) * 0.7, 10.0
    for panel, name in zip(axes.flat, SWEPT, strict=False):
        for i, kappa in enumerate(a["kappa"]):
            panel.plot(a["t"] + 1, a[f"risk_{name}"][:, i], color=colors(kappa), lw=1.4)
        panel.plot(a["t"] + 1, a["risk_adam"][:, 0], color="black", ls="--", lw=1.6, label="Adam")
        panel.plot(a["t"] + 1, a["risk_sgd"][:, 0], color=optimizer_color("sgd"), ls="-.", lw=1.4, label="SGD")
        panel.axhline(float(a["limit"]), color="black", lw=0.8, ls=":", label="limit risk")
        clip = f", clipsnr = {p.get('clipsnr', 0.5):g}" if name.endswith("mk4") else ""
        loglog(panel, LABELS[name] + clip, "steps t + 1", "population risk P")
        panel.set_ylim(low, high)
    axes[0][0].legend(loc="lower left")
    scale = ScalarMappable(Normalize(0, 1), colors)
    figure.colorbar(scale, ax=axes[:, 1], label="kappa", shrink=0.6, aspect=40)
    last = axes[1][1]
    for name in SWEPT:
        last.plot(
            a["kappa"],
            np.minimum(a[f"risk_{name}"][-1], high),
            color=optimizer_color(name),
            marker="o",
            ms=4,
            label=LABELS[name],
        )
    last.axhline(a["risk_adam"][-1, 0], color="black", ls="--", lw=1.4, label="Adam")
    last.set(yscale="log", xlabel="kappa", ylabel=f"risk after {int(a['t'][-1]):,} steps", ylim=(low, high))
    last.set_title("final risk (off the top: cut at 10)")
    last.legend(loc="upper right")
    return figure


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

    def final(self, name: str) -> np.ndarray:
        """Risk at the last time, one value a kappa."""
        return self.risk[name][-1]


def hummingbird(
    model: PLRF | None = None,
    *,
    kappas: Sequence[float] | None = None,
    steps: int = 16_000,
    batch: int = 10,
    lr: float = 0.003,
    clipsnr: float = 0.5,
    delta: float = 8.0,
    experts: int = 1,
    zeta: float = 0.5,
    noise: float = 0.0,
    adam_lr: float | None = None,
    seed: int = 0,
    optimizers: Sequence[str] = SWEPT,
) -> Hummingbird:
    """Run ADana, Dana-MK4 and Dana-Star-MK4 for all kappas, and Adam and SGD, on the same samples.

    Args:
        model: default alpha = 1, beta = 0.3, v = 800, d = 200, where the shape shows after 16,000 steps.
        kappas: default 0, 0.1, ..., 1.
        lr: learning rate of the family; its momentum term has the same (gamma3 = 1).
        clipsnr: of the two clipped members.
        experts, zeta: MoE-PLRF with expert probabilities i^-zeta; the risk is the mean under them.
        noise: scale of Student label noise (3 degrees of freedom).
        adam_lr: default `lr`. SGD takes min(1, batch / trace) / 2.
    Raises:
        UserError: kappa outside [0, 1], sizes that do not fit into memory, negative noise, unknown optimizer.
    """
    model = PLRF(1.0, 0.3, 800, 200) if model is None else model
    grid = np.asarray(np.linspace(0, 1, 11) if kappas is None else kappas, float)
    if not len(grid) or grid.min() < 0 or grid.max() > 1:
        raise UserError(f"kappas must lie between 0 and 1, not {grid.tolist()}")
    state = 4.0 * 4 * len(grid) * len(optimizers) * experts * model.d
    check_memory(
        state + 8.0 * 2 * model.v * model.d, "the hummingbird sweep", "take a smaller model, fewer experts or kappas"
    )
    probabilities = zipf(experts, zeta)
    contenders = {
        name: Racer(
            name, {"kappa": grid, "lr": lr, "delta": delta, **({"clipsnr": clipsnr} if name.endswith("mk4") else {})}
        )
        for name in optimizers
    }
    contenders["adam"] = Racer("adam", {"lr": lr if adam_lr is None else adam_lr})
    contenders["sgd"] = Racer("sgd", {"lr": 0.5 * min(1.0, batch / model.trace)})
    problem = draw(model, seed)
    times = geometric_times(steps)
    outcome = race(problem, contenders, times, Stream(batch, probabilities, noise, seed=seed))
    share = np.asarray(probabilities)
    risk = {name: out.risk @ share for name, out in outcome.items()}
    return Hummingbird(times.astype(float), grid, risk, problem.spectrum.limit, problem.spectrum.initial_risk)
