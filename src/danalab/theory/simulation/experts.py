"""MoE-PLRF: each optimizer under sparse gradients, and the tau statistics of Dana-Star.

Expert i is in a batch with probability P_i = 1 - (1 - p_i)^B. Without tau, active steps are inflated by P_i^(-1/2) and
t^(1 - kappa) counts wall steps; with it, expert i follows the one-expert curve on the clock P_i t.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from danalab.errors import UserError
from danalab.theory.problem.model import PLRF
from danalab.theory.problem.spectra import check_memory, draw
from danalab.theory.recording import geometric_times
from danalab.theory.simulation.adaptive import Contender, Stream, race, zipf


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
        batch: samples a step; the loss is averaged over all of them.
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
        "adana": Contender("adana", shared),
        "dana-mk4": Contender("dana-mk4", {**shared, **clip}),
        "dana-star-mk4": Contender("dana-star-mk4", {**shared, **clip}),
        "adam": Contender("adam", {"lr": lr}),
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
