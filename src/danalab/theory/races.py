"""Optimizers raced on one stream of samples for every kappa: the hummingbird, and a mixture of experts.

Hummingbird: risk against steps for kappa from 0 to 1, and final risk against kappa. Small kappa (much momentum) falls
fastest and then diverges, the earlier the smaller kappa is. Clipping the signal-to-noise ratio (Dana-MK4) prevents it.

Mixture: expert i is in a batch with probability P_i = 1 - (1 - p_i)^B. Without tau, active steps are inflated by
P_i^(-1/2) and t^(1 - kappa) counts wall steps; with it, expert i follows the one-expert curve on the clock P_i t.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from danalab.errors import UserError
from danalab.theory.curve import geometric_times
from danalab.theory.problem.model import PLRF
from danalab.theory.problem.spectra import check_memory, draw
from danalab.theory.stochastic import Racer, Stream, race, zipf

SWEPT = ("adana", "dana-mk4", "dana-star-mk4")
"""Optimizers that are run for every kappa."""


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
    grid, contenders = _family(optimizers, np.linspace(0, 1, 11) if kappas is None else kappas, lr, delta, clipsnr)
    contenders["adam"] = Racer("adam", {"lr": lr if adam_lr is None else adam_lr})
    contenders["sgd"] = Racer("sgd", {"lr": 0.5 * min(1.0, batch / model.trace)})
    needed = 4.0 * 4 * len(grid) * len(optimizers) * experts * model.d
    check_memory(
        needed + 16.0 * model.v * model.d, "the hummingbird sweep", "take a smaller model, fewer experts or kappas"
    )
    probabilities, times = zipf(experts, zeta), geometric_times(steps)
    problem = draw(model, seed)
    outcome = race(problem, contenders, times, Stream(batch, probabilities, noise, seed=seed))
    risk = {name: out.risk @ np.asarray(probabilities) for name, out in outcome.items()}
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

    def final(self, name: str) -> np.ndarray:
        """Risk at the last time, one value per kappa."""
        return self.risk[name][-1]


def _family(
    names: Sequence[str], kappas: Sequence[float] | np.ndarray, lr: float, delta: float, clipsnr: float
) -> tuple[np.ndarray, dict[str, Racer]]:
    """(kappas, the members `names` of the Dana family for each of them)."""
    grid = np.asarray(kappas, float)
    if not len(grid) or grid.min() < 0 or grid.max() > 1:
        raise UserError(f"kappas must lie between 0 and 1, not {grid.tolist()}")
    shared = {"kappa": grid, "lr": lr, "delta": delta}
    clipped = {**shared, "clipsnr": clipsnr}
    return grid, {name: Racer(name, clipped if name.endswith("mk4") else shared) for name in names}


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
    grid, contenders = _family(SWEPT, kappas, lr, delta, clipsnr)
    contenders["adam"] = Racer("adam", {"lr": lr})
    if seeds < 1:
        raise UserError(f"seeds = {seeds}: at least one is needed")
    at = geometric_times(steps, 1.3) if times is None else np.asarray(times, dtype=np.int64)
    needed = 4.0 * experts * model.d * len(grid) * (13 + 2 * len(at))
    check_memory(needed + 16.0 * model.v * model.d, "the MoE sweep", "take fewer experts, kappas or parameters")
    probabilities = zipf(experts, zeta)
    problems = [draw(model, seed) for seed in range(seeds)]
    streams = [Stream(batch, probabilities, noise, seed=seed) for seed in range(seeds)]
    outcomes = [race(p, contenders, at, s, ranks=np.arange(model.d)) for p, s in zip(problems, streams, strict=True)]
    return MoE(
        at.astype(float),
        grid,
        np.asarray(probabilities),
        1 - (1 - np.asarray(probabilities)) ** batch,
        {name: np.stack([o[name].risk for o in outcomes]) for name in contenders},
        np.stack([np.asarray(o["dana-star-mk4"].tau) for o in outcomes]),
        np.asarray([problem.spectrum.limit for problem in problems]),
        model.initial_risk,
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
