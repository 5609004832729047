"""The hummingbird plot: risk against steps for kappa from 0 to 1 on one data stream.

Small kappa (much momentum) falls fastest and then diverges, the earlier the smaller kappa is. Clipping the
signal-to-noise ratio (Dana-MK4) prevents the divergence.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from danalab.errors import UserError
from danalab.theory.problem.model import PLRF
from danalab.theory.problem.spectra import check_memory, draw
from danalab.theory.recording import geometric_times
from danalab.theory.simulation.adaptive import Contender, Stream, race, zipf

SWEPT = ("adana", "dana-mk4", "dana-star-mk4")
"""Optimizers that are run for every kappa."""


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
        name: Contender(
            name, {"kappa": grid, "lr": lr, "delta": delta, **({"clipsnr": clipsnr} if name.endswith("mk4") else {})}
        )
        for name in optimizers
    }
    contenders["adam"] = Contender("adam", {"lr": lr if adam_lr is None else adam_lr})
    contenders["sgd"] = Contender("sgd", {"lr": 0.5 * min(1.0, batch / model.trace)})
    problem = draw(model, seed)
    times = geometric_times(steps)
    outcome = race(problem, contenders, times, Stream(batch, probabilities, noise, seed=seed))
    share = np.asarray(probabilities)
    risk = {name: out.risk @ share for name, out in outcome.items()}
    return Hummingbird(times.astype(float), grid, risk, problem.spectrum.limit, problem.spectrum.initial_risk)
